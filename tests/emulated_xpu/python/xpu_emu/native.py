"""The compiled part, loaded."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
from pathlib import Path

import torch

import xpu_emu


def _load():
    path = Path(os.environ.get("XPU_EMU_SO") or xpu_emu.library(torch.__version__))
    if not path.exists():
        raise ImportError(f"XPU_EMU=1, but {path} isn't built: run tests/emulated_xpu/build.py with this Python")
    loader = importlib.machinery.ExtensionFileLoader("_xpu_emu", str(path))
    spec = importlib.util.spec_from_file_location("_xpu_emu", path, loader=loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


extension = _load()
