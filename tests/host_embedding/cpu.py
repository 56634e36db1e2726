"""Makes vLLM's platform the CPU, whatever devices the machine has; to be imported before the rest of vLLM."""

from __future__ import annotations

import os

os.environ["VLLM_TARGET_DEVICE"] = "cpu"

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

vllm.platforms._current_platform = CpuPlatform()  # for vLLM 0.24, which doesn't read the variable
