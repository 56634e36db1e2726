"""The replay sentinel with one fault put in, which must make it fail (exit status 1).

    torchrun --nproc-per-node 2 tests/gpu/sentinel_fault.py detached|freed-ids|device-copy

`detached`: the table is unpinned memory, whose view vLLM silently makes a copy. `freed-ids`: the static ids of every
graph are freed after its capture, and their block is used again. `device-copy`: lookups read a copy on the device.
"""

from __future__ import annotations

import sys
from typing import Any

from verl_xpu_shim.probes import replay_sentinel


def detached() -> None:
    def build(table: Any) -> Any:
        from vllm.utils.torch_utils import get_accelerator_view_from_cpu_tensor

        unpinned = table.clone()
        assert not unpinned.is_pinned()
        return get_accelerator_view_from_cpu_tensor(unpinned)

    _look_up_in(build)


def device_copy() -> None:
    _look_up_in(lambda table: table.to("cuda", copy=True))


def _look_up_in(other: Any) -> None:
    from verl_xpu_shim.vllm import sentinel

    stock = sentinel.build

    def build(device: Any) -> Any:
        layer = stock(device)
        layer._uva_weight = other(layer.weight.data)
        return layer

    sentinel.build = build


def freed_ids() -> None:
    import torch

    from verl_xpu_shim.vllm import sentinel

    stock = sentinel.capture
    used_again = []

    def capture(forward: Any, ids: torch.Tensor, device: torch.device) -> Any:
        captured = stock(forward, ids.clone(), device)
        block = captured.ids.data_ptr()
        captured.ids = ids  # the clone, which the graph reads, has no owner now
        torch.accelerator.synchronize()
        taken = [torch.full_like(ids, replay_sentinel.NOWHERE) for _ in range(64)]
        print("the block of the ids was used again:", block in [each.data_ptr() for each in taken], flush=True)
        used_again.append(taken)
        return captured

    sentinel.capture = capture


if __name__ == "__main__":
    {"detached": detached, "freed-ids": freed_ids, "device-copy": device_copy}[sys.argv[1]]()
    sys.exit(replay_sentinel.main([]))
