"""The one place that decides: is this an XPU host, is a capability left out, what if it can't be installed."""

from __future__ import annotations

import ast
import functools
import logging
import os
import sys
import time
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim import trace
from verl_xpu_shim.capability import EVERYWHERE
from verl_xpu_shim.capability import MARK
from verl_xpu_shim.capability import NAMES
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import load
from verl_xpu_shim.contract import LiveView
from verl_xpu_shim.contract import broken
from xpu_sitecustomize import Refused

_log: Final = logging.getLogger("verl_xpu_shim")


@dataclass(frozen=True)
class Outcome:
    """What became of a capability on a module in this process; ``event`` and ``detail`` as in the trace."""

    event: str
    detail: Any
    edit: Edit


#: (capability, module name) -> what became of it, the latest attempt.
outcomes: Final[dict[tuple[str, str], Outcome]] = {}


def apply(name: str, module: ModuleType) -> None:
    """Install the capability ``name`` on ``module``, whose body has run.

    Raises:
        Refused: a required capability (any, with ``VERL_XPU_SHIM_STRICT=1``) can't be installed.
    """
    began = time.perf_counter()
    edit = Edit(name)

    def settle(event: str, detail: Any) -> None:
        outcomes[name, module.__name__] = Outcome(event, detail, edit)
        ms = round((time.perf_counter() - began) * 1e3, 3)
        trace.emit(event, capability=name, module=module.__name__, detail=detail, ms=ms)

    reason = _reason_to_skip(name)
    if reason == "disabled" and is_xpu_host():
        _let_its_absence_be_told(name, module, edit)
    if reason is not None:
        return settle("skipped", reason)
    try:
        capability = load(name)
        target = capability.target(module.__name__)
        drift = broken(target.contract, LiveView(module))
        if not drift:
            target.patch(module, edit)
    except Refused:
        edit.undo()
        raise
    except Exception as error:
        edit.undo()
        detail = f"{type(error).__name__}: {error}"
        settle("failed", detail)
        return _report(name, module, f"it failed to install: {detail}", error)
    if drift:
        settle("drift", [{"expected": expected, "found": found} for expected, found in drift])
        return _report(name, module, "; ".join(f"expected {expected}, found {found}" for expected, found in drift))
    if edit.changes:
        _audit()
        return settle("applied", [f"{each.symbol}: {_brief(each.old)} -> {_brief(each.new)}" for each in edit.changes])
    return settle("skipped", "; ".join(edit.notes) or "already")


def is_xpu_host() -> bool:
    """Whether the PyTorch of this environment is an XPU build.

    The build is asked, never the device: ``torch.xpu.is_available()`` can create a context in a parent that will fork
    (intel/torch-xpu-ops#2089).
    """
    version = sys.modules.get("torch.version")
    return bool(getattr(version, "xpu", None) if version else _xpu_of_unloaded_torch())


@functools.cache
def _xpu_of_unloaded_torch() -> Any:
    """``torch.version.xpu`` read from the file: a process that has no torch yet shouldn't get one from us."""
    spec = PathFinder.find_spec("torch")
    for folder in spec.submodule_search_locations or () if spec else ():
        for node in ast.parse((Path(folder) / "version.py").read_text("utf-8")).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id="xpu"), value=ast.Constant(value=value)):
                    return value
                case ast.Assign(targets=[ast.Name(id="xpu")], value=ast.Constant(value=value)):
                    return value
    return None


@functools.cache
def disabled() -> frozenset[str]:
    """The capabilities left out by ``VERL_XPU_SHIM_DISABLE``; names that don't exist are warned of once."""
    names = frozenset(name.strip() for name in os.environ.get("VERL_XPU_SHIM_DISABLE", "").split(",") if name.strip())
    if unknown := sorted(names.difference(NAMES)):
        _log.warning(
            "VERL_XPU_SHIM_DISABLE names no capability of verl-xpu-shim: %s (the names are: %s)",
            ", ".join(unknown),
            ", ".join(NAMES),
        )
    return names & frozenset(NAMES)


@functools.cache
def _audit() -> None:
    """Start the audit of ``VERL_XPU_SHIM_AUDIT=1``, once a process."""
    if os.environ.get("VERL_XPU_SHIM_AUDIT") == "1":
        from verl_xpu_shim import stale

        stale.watch()


def _reason_to_skip(name: str) -> str | None:
    if name in disabled():
        return "disabled"
    return None if name in EVERYWHERE or is_xpu_host() else "no-xpu"


def _let_its_absence_be_told(name: str, module: ModuleType, edit: Edit) -> None:
    """Put what tells of its absence in the place of a capability that the user has left out."""
    try:
        left_out = load(name).target(module.__name__).left_out
        if left_out:
            left_out(module, edit)
    except Exception:  # it may be left out because it can't be loaded
        edit.undo()
        _log.debug("verl-xpu-shim: '%s' is left out, and can't tell so", name, exc_info=True)


def _report(name: str, module: ModuleType, what: str, error: Exception | None = None) -> None:
    """Stop the process over a required capability, log an optional one."""
    required, strict = _is_required(name), os.environ.get("VERL_XPU_SHIM_STRICT") == "1"
    text = (
        f"verl-xpu-shim can't install {'the required' if required else 'the optional'} capability '{name}' on "
        f"{module.__name__} ({_provenance(module)}): {what}. "
        f"{'Results would be wrong without it. ' if required else ''}"
        f"Use a version listed by 'verl-xpu-shim check', or leave it out with VERL_XPU_SHIM_DISABLE={name}."
    )
    if required or (strict and is_xpu_host()):
        raise Refused(text) from error
    level = logging.ERROR if is_xpu_host() else logging.DEBUG
    _log.log(level, "%s", text, exc_info=error)


def _is_required(name: str) -> bool:
    try:
        return load(name).required
    except Exception:  # a file of ours that can't be loaded: better to stop than to be absent in silence
        return True


def _provenance(module: ModuleType) -> str:
    """The distribution and version that ``module`` comes from, for a report."""
    top = module.__name__.partition(".")[0]
    try:
        import importlib_metadata

        return f"{top} {importlib_metadata.version(top)}"
    except ImportError:  # no such distribution, or not even importlib-metadata: a report must not fail over it
        return f"{top} at {getattr(module, '__file__', None)}"


def _brief(value: Any) -> str:
    if (maker := getattr(value, MARK, None)) is not None:
        return f"verl_xpu_shim.patches.{maker}"
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return f"{module}.{name}" if module and name else repr(value)[:80]
