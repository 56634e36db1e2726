"""What Ray asks of dpctl (`ray/_private/accelerators/intel_gpu.py`), answered for the emulated devices."""

from __future__ import annotations

from xpu_emu import visible_devices


class SyclContext:
    def __init__(self, selector: str) -> None:
        self.device_count = len(visible_devices.visible())
        if self.device_count == 0:  # dpctl raises SyclContextCreationError
            raise ValueError(f"SyclContext failed to be created for {selector!r}: no device")


class SyclDevice:
    def __init__(self, selector: str) -> None:
        index = int(selector.rpartition(":")[2])
        if index >= len(visible_devices.visible()):  # dpctl raises SyclDeviceCreationError
            raise ValueError(f"could not create a SyclDevice from {selector!r}")
        self.name = visible_devices.name()
