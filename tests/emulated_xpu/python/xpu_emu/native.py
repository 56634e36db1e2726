"""The compiled part, loaded."""

from __future__ import annotations

import importlib.util
from types import ModuleType

import torch

import xpu_emu


def _load() -> ModuleType:
    path = xpu_emu.library(torch.__version__)
    if not path.exists():
        raise ImportError(f"XPU_EMU=1, but there is no {path}: run {xpu_emu.HERE.parents[1]}/build.py with this Python")
    spec = importlib.util.spec_from_file_location("_xpu_emu", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


extension = _load()
