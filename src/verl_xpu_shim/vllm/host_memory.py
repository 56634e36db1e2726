"""Host memory that an accelerator reads in place: pinned, of exact size where that can be had, and proven live."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from vllm.platforms import current_platform
from vllm.utils.platform_utils import is_pin_memory_available
from vllm.utils.torch_utils import get_accelerator_view_from_cpu_tensor

_log: Final = logging.getLogger("vllm.host_embedding")

#: cudaHostRegisterPortable | cudaHostRegisterMapped, of the CUDA runtime (hipHostRegister* have the same values).
_PORTABLE_MAPPED: Final = 0x01 | 0x02


@dataclass(frozen=True)
class HostTable:
    """A table in host memory.

    ``tensor``: on the CPU, pinned where the platform is an accelerator's. ``view``: the same bytes as the accelerator
    addresses them, None on a CPU platform. ``held``: bytes of host memory taken, ``tensor.nbytes`` or more.
    """

    tensor: torch.Tensor
    view: torch.Tensor | None
    held: int

    def check_live(self) -> None:
        """Write a row on the host, read it through the view on the device, and put it back.

        A view of unpinned memory, or one under confidential computing, is a copy made once, without a word
        (https://github.com/vllm-project/vllm/pull/50671).

        Raises:
            RuntimeError: the device reads something else than the host wrote.
        """
        if self.view is None:
            return
        torch.accelerator.synchronize()
        host = self.tensor[:1].view(torch.uint8)
        before = host.clone()
        host.bitwise_not_()
        seen = self.view[:1].view(torch.uint8).cpu()
        live = torch.equal(seen, host)
        host.copy_(before)
        if not live:
            raise RuntimeError(
                f"The {self.view.device} view of the host embedding table {tuple(self.tensor.shape)} is not live: it "
                f"still shows old bytes after a write on the host (pinned: {self.tensor.is_pinned()}). Lookups would "
                "go stale at the next weight update. Unset VLLM_HOST_EMBED_TABLE on this machine."
            )


def allocate(shape: tuple[int, int], dtype: torch.dtype) -> HostTable:
    """Return a table of zeros in host memory that the accelerator of this process can read.

    No device memory is taken, whatever the default device.

    Raises:
        RuntimeError: pinned memory, or a live view of it, can't be had.
    """
    nbytes = math.prod(shape) * dtype.itemsize
    what = f"VLLM_HOST_EMBED_TABLE: a host table of {nbytes} bytes on {current_platform.device_name}"
    if current_platform.is_cpu():
        return HostTable(torch.zeros(shape, dtype=dtype, device="cpu"), None, nbytes)
    if not (current_platform.is_cuda_alike() or current_platform.is_xpu()):
        raise RuntimeError(f"{what}: this platform has no device-mapped view of host memory; unset the variable")
    if not is_pin_memory_available():
        raise RuntimeError(f"{what}: vLLM reports no pinned memory here (WSL, confidential computing); unset it")
    tensor, held = _registered(shape, dtype, nbytes) if current_platform.is_cuda_alike() else _pinned(shape, dtype)
    if not tensor.is_pinned():
        raise RuntimeError(f"{what}: the memory was allocated but is not pinned")
    table = HostTable(tensor, get_accelerator_view_from_cpu_tensor(tensor), held)
    table.check_live()
    return table


class _RegisteredMap(mmap.mmap):
    """Anonymous memory, registered with the CUDA driver until no storage holds it any more."""

    _unregister: Callable[[], object] | None = None

    def register(self, address: int, nbytes: int) -> int:
        """Pin and map the memory; return the runtime's error code, 0 for success."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        code = int(runtime.cudaHostRegister(address, nbytes, _PORTABLE_MAPPED))
        if code == 0:
            self._unregister = partial(runtime.cudaHostUnregister, address)
        return code

    def __del__(self) -> None:
        if self._unregister is not None:
            self._unregister()


def _registered(shape: tuple[int, int], dtype: torch.dtype, nbytes: int) -> tuple[torch.Tensor, int]:
    """Exactly ``nbytes``: ``pin_memory=True`` rounds up to a power of two (https://github.com/vllm-project/vllm/pull/58185).

    The registration must live as long as the *storage*, which outlives its Python tensor. torch.frombuffer's storage
    holds the buffer object itself, so the map registers and unregisters; a finalizer on the tensor fires too early.
    """
    memory = _RegisteredMap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without transparent huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    memory.madvise(mmap.MADV_DONTFORK)  # a fork would make pinned pages copy-on-write
    tensor = torch.frombuffer(memory, dtype=dtype).view(shape)
    tensor.zero_()  # the first touch places the pages on the NUMA node of this thread
    code = memory.register(tensor.data_ptr(), nbytes)
    if code == 0:
        return tensor, nbytes
    _log.warning(
        "cudaHostRegister of %d bytes failed with error %d; taking pinned memory of torch instead", nbytes, code
    )
    return _pinned(shape, dtype)


def _pinned(shape: tuple[int, int], dtype: torch.dtype) -> tuple[torch.Tensor, int]:
    """Pinned memory of torch, whose allocator rounds up to a power of two.

    On XPU there is no other way until torch can register host memory there (https://github.com/pytorch/pytorch/pull/195818).
    """
    tensor = torch.empty(shape, dtype=dtype, device="cpu", pin_memory=True).zero_()
    return tensor, 1 << (tensor.nbytes - 1).bit_length()
