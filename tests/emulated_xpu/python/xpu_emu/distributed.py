"""torch.distributed's `xccl` backend: what an XPU build's `_C` has is put there, and torch's own branch for it runs."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from xpu_emu.native import extension


class _ProcessGroupXCCLType(type):
    def __call__(cls, store: Any, rank: int, size: int, options: Any = None) -> Any:
        options = options or extension.XcclOptions()
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout=options._timeout)
        return extension.XcclBackend(dist.PrefixStore("xccl", store), gloo, rank, size, options)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, extension.XcclBackend)


class ProcessGroupXCCL(metaclass=_ProcessGroupXCCLType):
    Options = extension.XcclOptions


def install() -> None:
    ProcessGroupXCCL.__module__ = distributed_c10d.__name__
    for module in (torch._C._distributed_c10d, distributed_c10d, dist):
        module.ProcessGroupXCCL = ProcessGroupXCCL  # type: ignore[attr-defined]
    distributed_c10d._XCCL_AVAILABLE = True
    distributed_c10d.__all__.append("ProcessGroupXCCL")
