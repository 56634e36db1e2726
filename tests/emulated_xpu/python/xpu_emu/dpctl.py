"""What Ray asks of dpctl, answered for the emulated devices (`ray/_private/accelerators/intel_gpu.py`)."""

from xpu_emu import visible_devices


class SyclContext:
    def __init__(self, selector: str) -> None:
        self.device_count = len(visible_devices.visible())
        if not self.device_count:
            raise ValueError(f"SyclContext failed to be created: no device for {selector!r}")


class SyclDevice:
    def __init__(self, selector: str) -> None:
        self.name = visible_devices.NAME
