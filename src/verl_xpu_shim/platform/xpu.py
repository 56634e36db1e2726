"""``PlatformXPU``: what verl asks of a device, answered by :mod:`torch.xpu`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase


class PlatformXPU(PlatformBase):  # type: ignore[misc]  # verl is untyped
    """Intel GPUs: device ``xpu``, collectives by ``xccl`` (oneCCL).

    Constructing it has no side effect: verl instantiates every registered platform when it looks for one.
    """

    @property
    def device_name(self) -> str:
        return "xpu"

    @property
    def vendor_name(self) -> str:
        return "intel"

    @property
    def device_module(self) -> ModuleType:
        return torch.xpu

    def is_available(self) -> bool:
        return torch.xpu.is_available()

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # The driver process and CPU-only Ray actors see no device, and still belong to an XPU job.
        return torch.version.xpu is not None if use_smi_check else self.is_available()

    def current_device(self) -> int:
        return torch.xpu.current_device()

    def device_count(self) -> int:
        return torch.xpu.device_count()

    def set_device(self, device_index: int) -> None:
        torch.xpu.set_device(device_index)

    def synchronize(self, device_index: int | None = None) -> None:
        torch.xpu.synchronize(device_index)

    def manual_seed(self, seed: int) -> None:
        torch.xpu.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.xpu.manual_seed_all(seed)

    def set_allocator_settings(self, settings: str) -> None:
        """Ignored: what verl sets (``expandable_segments``) are settings of the CUDA allocator."""

    def empty_cache(self) -> None:
        torch.xpu.empty_cache()

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None  # no CUDA compute capability; verl's kernels take that for "none of the fast paths"

    def communication_backend_name(self) -> str:
        return "xccl"

    def visible_devices_envvar(self) -> str:
        return "ZE_AFFINITY_MASK"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        """Nothing to start: profilers are driven through ``DistProfiler``."""

    def profiler_stop(self) -> None:
        """Nothing to stop."""

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"]

    def is_ipc_supported(self) -> bool:
        return False  # torch.xpu shares no device memory between processes: weights travel through shared memory

    def cudart(self) -> Any:
        return None
