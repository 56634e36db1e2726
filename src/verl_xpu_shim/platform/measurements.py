"""What verl measures on a device and doesn't on XPU: memory, model FLOPs utilisation, kernels in torch's profiles.

None of it changes a result. The targets belong to the capability ``dist_profiler``.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Constant
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

_log: Final = logging.getLogger("verl_xpu_shim")

BF16_PER_CLOCK: Final = {
    "Data Center GPU Max 1550": (512, 1.60e9),
    "Data Center GPU Max 1100": (512, 1.55e9),
    "Arc(TM) Pro B70": (256, 2.80e9),
    "Arc(TM) Pro B65": (256, 2.40e9),
    "Arc(TM) Pro B60": (256, 2.40e9),
    "Arc(TM) Pro B50": (256, 2.60e9),
}
"""Part of the device's name -> dense bf16 operations per clock of one vector engine with its XMX, maximal clock in Hz.

Operations: Intel, oneAPI GPU Optimization Guide, "Intel Xe GPU Architecture" (Xe-HPC: 512); Xe2 has 2048 a Xe-core of
eight engines. Clocks: Intel's product pages ("max dynamic frequency"). With 1024 vector engines the Max 1550 comes to
839 TFLOPS; for Arc Pro, twice the result is the INT8 figure that Intel publishes: 367, 197, 197 and 170 TOPS.
"""

FLOPS_UNITS: Final = "BKMGTP"

CONTENTS: Final = ("cuda", "cpu", "memory", "shapes", "stack")
"""What verl accepts in ``tool_config.torch.contents``."""


def peak_flops(name: str, engines: int) -> float | None:
    """The dense bf16 peak of a device in FLOP/s; None where it isn't known.

    Args:
        name: as ``torch.xpu.get_device_name()`` gives it.
        engines: vector engines of the device, which torch calls ``max_compute_units``: of a tile where a tile is one.
    """
    for part, (operations, clock) in BF16_PER_CLOCK.items():
        if part in name:
            return operations * clock * engines
    return None


def _flops(module: ModuleType, edit: Edit) -> None:
    """An unknown device has infinite peak in verl, so its MFU is reported as 0."""

    def make(original: Callable[..., float]) -> Callable[..., float]:
        def get_device_flops(unit: str = "T", device_name: str | None = None) -> float:
            known = original(unit, device_name)
            if device_name is not None or math.isfinite(known) or not on_xpu():
                return known
            import torch

            properties = torch.xpu.get_device_properties()
            peak = peak_flops(properties.name, properties.max_compute_units)
            if peak is None:
                _warn_of_unknown_peak(properties.name)
                return known
            return peak / 1000.0 ** FLOPS_UNITS.index(unit)

        return get_device_flops

    edit.wrap(module, "get_device_flops", make)


@functools.cache
def _warn_of_unknown_peak(name: str) -> None:
    _log.warning("no peak FLOP/s known for %s: verl will report its MFU as 0", name)


def _memory(module: ModuleType, edit: Edit) -> None:
    """``torch.xpu.mem_get_info`` raises where the driver doesn't tell free memory (pytorch/pytorch#161381)."""

    def make(original: Callable[..., tuple[str, ...]]) -> Callable[..., tuple[str, ...]]:
        def mem_info(unit: str = "GB", precision: int = 2) -> tuple[str, ...]:
            try:
                return original(unit, precision)
            except RuntimeError:
                if not on_xpu():
                    raise
            import torch

            # What other processes hold isn't known, so "used" is what this one has reserved.
            reserved, total = torch.xpu.memory_reserved(), torch.xpu.get_device_properties().total_memory
            divisor = 1024 ** ("KB", "MB", "GB").index(unit) * 1024
            figures = torch.xpu.memory_allocated(), reserved, reserved, total
            return tuple(f"{figure / divisor:.{precision}f}" for figure in figures)

        return mem_info

    edit.wrap(module, "_get_current_mem_info", make)


def _profile(module: ModuleType, edit: Edit) -> None:
    """Verl asks torch's profiler for CPU and CUDA activity only, so a profile holds no kernels."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_torch_profiler(contents: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not on_xpu():
                return original(contents, *args, **kwargs)
            from torch.profiler import ProfilerActivity

            named = ["cuda" if each == "xpu" else each for each in contents or ()]
            profiler = original(named, *args, **kwargs)
            if ProfilerActivity.CUDA in profiler.activities:
                profiler.activities = profiler.activities - {ProfilerActivity.CUDA} | {ProfilerActivity.XPU}
                profiler.use_device = "xpu"
            return profiler

        return get_torch_profiler

    edit.wrap(module, "get_torch_profiler", make)


def _contents(module: ModuleType, edit: Edit) -> None:
    """``xpu`` is a word for it too."""
    edit.constant(module.TorchProfilerToolConfig.__post_init__, CONTENTS, ("xpu", *CONTENTS))


TARGETS: Final = (
    Target(
        "verl.utils.flops_counter",
        _flops,
        (
            Parameters("get_device_flops", ("unit", "device_name")),
            Mentions("FlopsCounter.estimate_flops", ("get_device_flops",)),
        ),
    ),
    Target(
        "verl.utils.profiler.performance",
        _memory,
        (
            Parameters("_get_current_mem_info", ("unit", "precision")),
            Mentions("_get_current_mem_info", ("mem_get_info",)),
        ),
    ),
    Target(
        "verl.utils.profiler.torch_profile",
        _profile,
        (
            Parameters("get_torch_profiler", ("contents",), at_least=True),
            Mentions("get_torch_profiler", ("CUDA", "profile")),
        ),
    ),
    Target("verl.utils.profiler.config", _contents, (Constant("TorchProfilerToolConfig.__post_init__", CONTENTS),)),
)
