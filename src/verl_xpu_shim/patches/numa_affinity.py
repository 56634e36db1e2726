"""``numa_affinity``: verl pins its workers through NVML, on Intel GPUs not at all; here through Level Zero and sysfs.

vLLM's ``--numa-bind`` refuses to look for nodes on anything but CUDA and ROCm; on XPU it finds them by the same code.
Can go once verl asks its platform, and vLLM's XPU platform has ``get_all_device_numa_nodes``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

_log: Final = logging.getLogger("verl_xpu_shim")


def pin_to_device(ordinal: int) -> bool:
    """Pin this process beside torch's ``xpu:ordinal`` and return True; or say in one line why it can't."""
    from verl_xpu_shim.topology import numa

    try:
        place = numa.place(ordinal, numa.SYSFS)
        numa.pin(place.cpus)
    except (numa.NotPinned, OSError) as reason:
        _log.warning("xpu:%d: CPU affinity left as it is: %s", ordinal, reason)
        return False
    cpus = numa.format_cpulist(place.cpus)
    _log.info("xpu:%d (%s) is on NUMA node %d: pinned to CPUs %s", ordinal, place.gpu.address, place.node, cpus)
    return True


def _verl(module: ModuleType, edit: Edit) -> None:
    def make(original: Callable[[], None]) -> Callable[[], None]:
        def set_numa_affinity() -> None:
            if on_xpu():
                import torch

                pin_to_device(torch.xpu.current_device())
            else:
                original()

        return set_numa_affinity

    edit.wrap(module, "set_numa_affinity", make)


def _vllm(module: ModuleType, edit: Edit) -> None:
    def make(original: Callable[[], list[int] | None]) -> Callable[[], list[int] | None]:
        def get_auto_numa_nodes() -> list[int] | None:
            from vllm.platforms import current_platform

            if not current_platform.is_xpu():
                return original()
            from verl_xpu_shim.topology import numa

            try:
                nodes = numa.nodes(numa.SYSFS)
            except numa.NotPinned as reason:
                _log.warning("--numa-bind: %s", reason)
                return None
            _log.info("--numa-bind: the devices of this process are on NUMA nodes %s", nodes)
            return nodes

        return get_auto_numa_nodes

    edit.wrap(module, "get_auto_numa_nodes", make)


CAPABILITY: Final = Capability(
    name="numa_affinity",
    required=False,
    summary="each worker pinned to the CPUs local to its device",
    targets=(
        Target(
            "verl.utils.distributed",
            _verl,
            (Parameters("set_numa_affinity", ()), Mentions("set_numa_affinity", ("pynvml",))),
        ),
        Target("vllm.utils.numa_utils", _vllm, (Parameters("get_auto_numa_nodes", ()),)),
    ),
)
