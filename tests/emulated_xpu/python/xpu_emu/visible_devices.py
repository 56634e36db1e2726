"""Which of the emulated machine's devices this process sees, by the rules of Intel's driver."""

from __future__ import annotations

import os

NAME = os.environ.get("XPU_EMU_NAME", "Intel(R) Data Center GPU Max 1550")


def visible() -> list[int]:
    """Physical indices, in the order of torch's ordinals: a mask selects, it doesn't reorder."""
    devices = range(int(os.environ.get("XPU_EMU_DEVICE_COUNT", "1")))
    mask = os.environ.get("ZE_AFFINITY_MASK", "")
    if mask in ("", "default"):
        return list(devices)
    wanted = {int(entry) for entry in mask.split(",")}
    return [index for index in devices if index in wanted]
