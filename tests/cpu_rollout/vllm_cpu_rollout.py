"""A vLLM plugin for a rollout engine on a CPU whose weights change at every step."""

from __future__ import annotations

import torch


def register() -> None:
    """Keep linear weights as they are loaded.

    On a CPU, vLLM packs them into a copy and leaves empty parameters behind, which no later
    ``model.load_weights`` can fill: verl's first weight update would fail.
    """
    from vllm.model_executor.layers import utils
    from vllm.platforms import current_platform

    def unpacked(layer: torch.nn.Module, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    if current_platform.is_cpu():
        utils.dispatch_cpu_unquantized_gemm = unpacked
