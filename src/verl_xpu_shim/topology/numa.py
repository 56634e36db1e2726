"""The CPUs local to a PCI device, from sysfs, and pinning this process to them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from typing import NamedTuple

from verl_xpu_shim.topology import sysman

SYSFS: Final = Path("/sys")


class NotPinned(Exception):
    """There is nothing sensible to pin to; the text says why, in one line."""


class Place(NamedTuple):
    """Where a device sits."""

    gpu: sysman.Gpu
    node: int
    cpus: frozenset[int]
    """The CPUs on that node that this process may use, never empty."""


def place(ordinal: int, sysfs: Path = SYSFS) -> Place:
    """Where torch's device ``xpu:ordinal`` of this process sits.

    Raises:
        NotPinned: the device can't be found or there is no node to name; the text says why.
    """
    gpus = _gpus()
    if ordinal >= len(gpus):
        raise NotPinned(f"Level Zero Sysman lists {len(gpus)} device(s), so it has no xpu:{ordinal}")
    gpu = gpus[ordinal]
    return Place(gpu, node(gpu.address, sysfs), local_cpus(gpu.address, os.sched_getaffinity(0), sysfs))


def nodes(sysfs: Path = SYSFS) -> list[int]:
    """The NUMA node of each of torch's devices of this process.

    Raises:
        NotPinned: the devices can't be found, or one's node is unknown.
    """
    found = []
    for gpu in _gpus():
        found.append(node(gpu.address, sysfs))
        if found[-1] < 0:
            raise NotPinned(f"the firmware names no NUMA node for {gpu.address}")
    return found


def _gpus() -> list[sysman.Gpu]:
    try:
        return sysman.torch_gpus()
    except (sysman.Unavailable, ValueError) as error:
        raise NotPinned(str(error)) from None


def node(address: str, sysfs: Path = SYSFS) -> int:
    """The NUMA node of the PCI device at ``address`` (``0000:3d:00.0``); -1 where the firmware names none.

    Raises:
        NotPinned: sysfs doesn't know the device.
    """
    return int(_read(address, "numa_node", sysfs))


def local_cpus(address: str, allowed: Collection[int], sysfs: Path = SYSFS) -> frozenset[int]:
    """The CPUs on the device's NUMA node that this process may use, never empty.

    Args:
        address: PCI address as sysfs writes it.
        allowed: what the cpuset of the process leaves it, e.g. ``os.sched_getaffinity(0)``.
        sysfs: where sysfs is mounted.

    Raises:
        NotPinned: sysfs doesn't know the device, its node is unknown, or no CPU of it is allowed.
    """
    where = node(address, sysfs)
    if where < 0:
        raise NotPinned(f"the firmware names no NUMA node for {address}")
    local = parse_cpulist(_read(address, "local_cpulist", sysfs))
    if not local:
        raise NotPinned(f"NUMA node {where} of {address} has no CPUs")
    usable = local.intersection(allowed)
    if not usable:
        raise NotPinned(
            f"none of the CPUs {format_cpulist(local)} of {address} (NUMA node {where}) is among those "
            f"that this process is allowed: {format_cpulist(allowed)}"
        )
    return usable


def pin(cpus: Collection[int], proc: Path = Path("/proc")) -> None:
    """Bind every thread of this process to ``cpus``: those that exist, and by inheritance those to come.

    A thread bound to some of ``cpus`` already (an OpenMP or oneCCL worker) keeps its narrower binding.

    Raises:
        OSError: the kernel refuses, e.g. because none of ``cpus`` is in the cpuset.
    """
    wanted = set(cpus)
    os.sched_setaffinity(0, wanted)
    done: set[int] = set()
    # A thread not yet bound may have started another since the folder was read: until there is none.
    while new := {int(task.name) for task in (proc / "self/task").iterdir()} - done:
        for thread in new:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.sched_setaffinity(thread, os.sched_getaffinity(thread) & wanted or wanted)
        done |= new


def parse_cpulist(text: str) -> frozenset[int]:
    """The CPUs of a list as sysfs writes it: ``0-3,8`` is 0, 1, 2, 3 and 8.

    Raises:
        ValueError: ``text`` isn't such a list.
    """
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def format_cpulist(cpus: Iterable[int]) -> str:
    """The reverse of ``parse_cpulist``."""
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


def _read(address: str, name: str, sysfs: Path) -> str:
    path = sysfs / "bus/pci/devices" / address / name
    try:
        return path.read_text()
    except OSError as error:
        raise NotPinned(f"can't read {path}: {error.strerror}") from None
