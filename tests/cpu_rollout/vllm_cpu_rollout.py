"""A vLLM plugin for a rollout engine on a CPU whose weights change at every step."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any


def register() -> None:
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        _keep_linear_weights()
        if victim := os.environ.get("CPU_ROLLOUT_DIES"):
            _die_in_a_weight_update(*victim.split(":", 1))


def _keep_linear_weights() -> None:
    """On a CPU, vLLM packs them into a copy and leaves empty parameters behind, which no later load can fill."""
    import torch
    from vllm.model_executor.layers import utils

    def unpacked(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = unpacked


def _die_in_a_weight_update(victim: str, flag: str) -> None:
    """For tests: the first engine that loads weights for the second time makes the file ``flag`` and loses a process.

    ``victim``: ``worker``, the one that loads, or ``engine``, its parent.
    """
    from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM

    original, updates = Qwen2ForCausalLM.load_weights, []

    def load_weights(self: Any, weights: Any) -> Any:
        updates.append(None)
        if len(updates) == 2:
            try:
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass  # another engine has died: one is enough
            else:
                pid = {"worker": os.getpid(), "engine": os.getppid()}[victim]
                print(f"cpu_rollout: killing the {victim}, {pid}", file=sys.stderr, flush=True)
                os.kill(pid, signal.SIGKILL)
        return original(self, weights)

    Qwen2ForCausalLM.load_weights = load_weights
