"""An emulated `xpu` device on a CPU build of torch, for tests: see the README two folders up.

What a process started with `XPU_EMU=1` imports first, from a `.pth`: standard library only. `arm()` puts a finder on
`sys.meta_path` that follows the import of torch and offers `dpctl`; no other module is touched.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Final

HERE: Final = Path(__file__).resolve().parent
CACHE: Final = Path(os.environ.get("XPU_EMU_CACHE") or HERE.parents[3] / ".cache" / "emulated_xpu")


def library(torch_version: str) -> Path:
    """Where the compiled part for this Python and that torch is, once `build.py` has made it."""
    return CACHE / f"torch-{torch_version}-{sysconfig.get_config_var('SOABI')}" / "_xpu_emu.so"


def _say_xpu(version: ModuleType) -> None:
    # An XPU build says so from torch/version.py on, and code that runs while torch is being imported may ask.
    version.xpu = os.environ.get("XPU_EMU_VERSION", "20250301")  # type: ignore[attr-defined]


def _install(torch: ModuleType) -> None:
    from xpu_emu import device
    from xpu_emu import distributed

    device.install()
    distributed.install()


_WHEN_IMPORTED: Final[dict[str, Callable[[ModuleType], None]]] = {"torch.version": _say_xpu, "torch": _install}


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == "dpctl" and os.environ.get("XPU_EMU_DPCTL") != "0":
            return importlib.util.spec_from_file_location(name, HERE / "dpctl.py")
        when_imported = _WHEN_IMPORTED.get(name)
        if when_imported is None:
            return None
        # Only those behind this one, so that it doesn't matter who else stands on the path, and where.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                return _followed(spec, when_imported)
        return None


def _followed(spec: ModuleSpec, when_imported: Callable[[ModuleType], None]) -> ModuleSpec:
    loader = spec.loader
    assert loader is not None
    run_body = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        run_body(module)
        when_imported(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]  # of this spec's own loader
    return spec


def arm() -> None:
    """Emulates the device in this process, from the import of torch on."""
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return  # a .pth runs twice in a venv up to Python 3.12
    if "torch" in sys.modules:
        raise RuntimeError("xpu_emu.arm() comes too late: torch has been imported")
    sys.meta_path.insert(0, _Finder())
