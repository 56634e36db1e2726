"""torch.xpu over the emulated devices: what an XPU build has in `torch._C`, and the classes made from it."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch

from xpu_emu import visible_devices
from xpu_emu.native import extension


class _XPUuuid:
    """As in `torch/csrc/xpu/Module.cpp`."""

    def __init__(self, physical: int) -> None:
        self._uuid = visible_devices.device_uuid(physical)

    @property
    def bytes(self) -> list[int]:
        return list(self._uuid.bytes)

    def __str__(self) -> str:
        return str(self._uuid)


class _XpuDeviceProperties:
    """A Data Center GPU Max 1550, whatever its name says. `physical_index` and `pci_address` are the emulator's own."""

    def __init__(self, ordinal: int) -> None:
        self.physical_index = extension.physical_devices()[ordinal]
        self.pci_address = visible_devices.pci_address(self.physical_index)
        self.uuid = _XPUuuid(self.physical_index)
        self.name = visible_devices.name()
        self.platform_name = "Intel(R) oneAPI Unified Runtime over Level-Zero"
        self.vendor = "Intel(R) Corporation"
        self.type = "gpu"
        self.device_id = 0x0BD5
        self.driver_version = self.version = "1.6.0"
        self.total_memory = extension.capacity()
        self.local_mem_size = 128 << 10
        self.last_level_cache_size = 204 << 20
        self.memory_clock_rate, self.memory_bus_width = 3200, 64
        self.max_compute_units = self.gpu_eu_count = 512
        self.gpu_subslice_count = 64
        self.max_work_group_size, self.max_num_sub_groups = 1024, 64
        self.sub_group_sizes = [16, 32]
        self.has_fp16 = self.has_fp64 = self.has_atomic64 = True
        self.has_bfloat16_conversions = True
        self.has_subgroup_matrix_multiply_accumulate = True
        self.has_subgroup_matrix_multiply_accumulate_tensor_float32 = True
        self.has_subgroup_2d_block_io = True
        self.is_integrated_gpu = False
        self.architecture = 13136561920

    def __repr__(self) -> str:
        return f"_XpuDeviceProperties(name='{self.name}', uuid={self.uuid}, total_memory={self.total_memory >> 20}MB)"


class _XpuStreamBase(torch.Stream):
    def __new__(cls, priority: int = 0, stream_id: int = 0, device_index: int = 0, device_type: int = 0) -> Any:
        if stream_id or device_index or device_type:
            return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)
        return super().__new__(cls, device=torch.device("xpu", torch._C._xpu_getDevice()), priority=priority)

    @property
    def sycl_queue(self) -> int:
        return 0x10000 + self.stream_id  # a number to tell streams apart by, not an address

    @property
    def priority(self) -> int:
        return 0

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1


class _XpuEventBase(torch.Event):
    def __new__(cls, enable_timing: bool = False) -> Any:
        return super().__new__(cls, device="xpu", enable_timing=enable_timing)

    def record(self, stream: Any = None) -> None:
        self._recorded = time.perf_counter_ns()
        super().record(stream)

    def elapsed_time(self, other: Any) -> float:  # torch.Event's own refuses subclasses
        return (other._recorded - self._recorded) / 1e6

    @property
    def sycl_event(self) -> int:
        return self.event_id


def install() -> None:
    if torch._C._has_xpu:
        raise RuntimeError(f"torch {torch.__version__} has real XPU support: unset XPU_EMU")
    extension.install()
    torch._C._has_xpu = True
    bindings = extension.torch_c
    for name in dir(bindings):
        if name.startswith("_xpu_"):
            setattr(torch._C, name, getattr(bindings, name))
    torch._C._xpu_init = _init
    torch._C._XpuDeviceProperties = _XpuDeviceProperties
    torch._C._XPUuuid = _XPUuuid
    torch._C._XpuStreamBase = _XpuStreamBase
    torch._C._XpuEventBase = _XpuEventBase

    # torch/xpu/__init__.py took these from torch._C when it was imported, or put dummies in their place.
    xpu = torch.xpu
    xpu._XpuDeviceProperties = _XpuDeviceProperties
    xpu._exchange_device = bindings._xpu_exchangeDevice
    xpu._maybe_exchange_device = bindings._xpu_maybeExchangeDevice
    xpu._is_in_bad_fork = bindings._xpu_isInBadFork
    xpu.graphs._xpu_isCurrentStreamCapturing = bindings._xpu_isCurrentStreamCapturing
    # torch's own Stream and Event, once more, now over these bases.
    spec = importlib.util.find_spec("torch.xpu.streams")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(xpu.streams)
    xpu.Stream, xpu.Event = xpu.streams.Stream, xpu.streams.Event


def _init() -> None:
    extension.torch_c._xpu_init()
    count = extension.torch_c._xpu_getDeviceCount()
    properties: dict[int, _XpuDeviceProperties] = {}

    def get_device_properties(ordinal: int) -> _XpuDeviceProperties:
        if not 0 <= ordinal < count:
            raise RuntimeError(f"The device index is out of range. It must be in [0, {count}), but got {ordinal}.")
        return properties.setdefault(ordinal, _XpuDeviceProperties(ordinal))

    torch.xpu._get_device_properties = get_device_properties
    torch.xpu.default_generators = tuple(extension.default_generator(ordinal) for ordinal in range(count))
