"""The way in: one finder on ``sys.meta_path``, and hooks that run when the body of a module has run.

An interpreter start loads nothing of this package but the copy of `startup/_xpu_sitecustomize.py`; the package itself
comes with the first ``import verl`` or ``import vllm``, or when it is asked for.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import _xpu_sitecustomize as _door
from xpu_sitecustomize import finder as _finder
from xpu_sitecustomize.finder import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

__all__ = ["Refused", "entered", "environ", "install", "is_installed", "uninstall", "watch"]

entered: str | None  #: how the finder came in: "pth", "sitecustomize" or "import"; None where it is not installed


def install(how: str = "import") -> bool:
    """Put the finder first on ``sys.meta_path``; whether it is there. Idempotent; ``VERL_XPU_SHIM=0`` says no.

    Raises:
        Refused: verl or vLLM is imported already and a capability that correctness needs can't be installed.
    """
    if not _door.start(how):
        return False
    if "verl" in sys.modules or "vllm" in sys.modules:
        _finder.arm()
    return True


def uninstall() -> None:
    """Take the finder out again. What is patched already stays so."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _door]
    _door.entered = None


def is_installed() -> bool:
    """Whether the finder is on ``sys.meta_path``."""
    return any(finder is _door for finder in sys.meta_path)


def watch(name: str, hook: Callable[[ModuleType], object]) -> None:
    """Call ``hook(module)`` whenever the body of module `name` has run, before any importer of it goes on.

    At once where it is imported already, at the end of the body where that is running, again after a reload. What the
    hook replaces is replaced, too, in the modules that took the original before. What it raises is reported and breaks
    nobody's import, save `Refused`. Installs the finder; does nothing where ``VERL_XPU_SHIM`` is off.
    """
    if install():
        _finder.watch(name, hook)


def environ(name: str) -> str | None:
    """Return an environment variable; None, too, where the environment is not to be trusted.

    That is under ``-E`` and ``-I`` and in a set-uid process. The main switch alone is read regardless: all that it can
    do is leave us out.
    """
    if sys.flags.ignore_environment or os.getuid() != os.geteuid() or os.getgid() != os.getegid():
        return None
    return os.environ.get(name)


def __getattr__(name: str) -> str | None:
    if name == "entered":
        return _door.entered
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
