"""An emulated `xpu` device on a CPU build of torch, for tests. See the README two folders up.

This module is what a process started with `XPU_EMU=1` imports first: standard library only. `arm()` puts a finder
on `sys.meta_path` that follows the import of torch, and of `dpctl`, and touches no other module.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("XPU_EMU_CACHE") or HERE.parents[3] / ".cache" / "emulated_xpu")


def library(torch_version: str) -> Path:
    """Where the compiled part for this Python and that torch is, or will be."""
    return CACHE / f"torch-{torch_version}-{sysconfig.get_config_var('SOABI')}" / "_xpu_emu.so"


def _version(module: ModuleType) -> None:
    # A real XPU build says so from torch/version.py on: code that is imported while torch's own body still runs asks it.
    module.xpu = os.environ.get("XPU_EMU_VERSION", "20250301")  # type: ignore[attr-defined]


def _torch(module: ModuleType) -> None:
    from xpu_emu import device, distributed

    device.install()
    distributed.install()


class _Finder(importlib.abc.MetaPathFinder):
    bodies: dict[str, Callable[[ModuleType], None]] = {"torch.version": _version, "torch": _torch}

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "dpctl" and os.environ.get("XPU_EMU_DPCTL") != "0":
            return importlib.util.spec_from_file_location(name, HERE / "dpctl.py")
        after = self.bodies.get(name)
        if after is None:
            return None
        # Ask those behind this one, so that it doesn't matter where other finders stand.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target) if hasattr(finder, "find_spec") else None
            if spec is not None:
                break
        else:
            return None
        run_body = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run_body(module)
            after(module)

        spec.loader.exec_module = exec_module
        return spec


def arm() -> None:
    """Emulates the device in this process, from the import of torch on."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return  # a .pth line runs twice in a venv up to Python 3.12
    if "torch" in sys.modules:
        raise RuntimeError("xpu_emu.arm() comes too late: torch is imported already")
    sys.meta_path.insert(0, _Finder())
