"""The emulated machine's devices, and which of them this process sees. Standard library only: `dpctl` asks too."""

from __future__ import annotations

import os
import re
import struct
import uuid
from typing import Final

NAME: Final = "Intel(R) Data Center GPU Max 1550"


class DriverError(RuntimeError):
    """What a driver does with an environment that it can't read: it stops the process."""


def name() -> str:
    return os.environ.get("XPU_EMU_NAME") or NAME


def visible() -> list[int]:
    """Physical indices, ascending: torch's ordinal `i` is device `visible()[i]`.

    Each device is one tile, so that the hierarchy (`ZE_FLAT_DEVICE_HIERARCHY`) makes no difference. Reads the
    environment at each call; a process's own answer is fixed when torch first asks.

    Raises `DriverError` for a mask or selector that this emulator, or a driver, can't read.
    """
    devices = list(range(int(os.environ.get("XPU_EMU_DEVICE_COUNT") or 1)))
    return _selected(_unmasked(devices, os.environ.get("ZE_AFFINITY_MASK", "")))


def _unmasked(devices: list[int], mask: str) -> list[int]:
    # intel/compute-runtime, ExecutionEnvironment::parseAffinityMask: an empty mask or "default" is none, the order
    # doesn't matter, an index that isn't there is ignored, and "device.tile" is ignored in FLAT mode. A word ends in an
    # uncaught std::invalid_argument there (newer SYCL runtimes drop such a mask: intel/llvm#21653).
    if mask in ("", "default"):
        return devices
    wanted = set()
    for entry in mask.split(","):
        number = re.match(r"\s*[+-]?\d+", entry)
        if number is None:
            raise DriverError(f"ZE_AFFINITY_MASK={mask!r}: {entry!r} isn't a device index (std::invalid_argument)")
        if "." not in entry:
            wanted.add(int(number[0]))
    return [index for index in devices if index in wanted]


def _selected(devices: list[int]) -> list[int]:
    # ONEAPI_DEVICE_SELECTOR filters what the mask has left, by relative index. Of its grammar
    # (https://intel.github.io/llvm/EnvironmentVariables.html) only backend:devices terms are emulated.
    selector = os.environ.get("ONEAPI_DEVICE_SELECTOR")
    if selector is None:
        return devices
    chosen: set[int] = set()
    for term in selector.split(";"):
        backend, colon, which = term.strip().lower().partition(":")
        if not colon or not re.fullmatch(r"\*|gpu|\d+(,\d+)*", which):
            raise DriverError(f"ONEAPI_DEVICE_SELECTOR={selector!r}: {term!r} isn't backend:devices")
        if backend in ("level_zero", "*"):
            chosen.update(range(len(devices)) if which in ("*", "gpu") else map(int, which.split(",")))
    return [device for position, device in enumerate(devices) if position in chosen]


def pci_address(physical: int) -> str:
    """`XPU_EMU_PCI`, a comma list, or one made from the index: the same in each process of the machine."""
    given = os.environ.get("XPU_EMU_PCI")
    return given.split(",")[physical].strip() if given else f"0000:{0x18 + 4 * physical:02x}:00.0"


def device_uuid(physical: int) -> uuid.UUID:
    """As Intel's driver makes it: vendor, device and revision, then the PCI address."""
    domain, bus, device, function = (int(field, 16) for field in re.split("[:.]", pci_address(physical)))
    return uuid.UUID(bytes=struct.pack("<HHHHBBB5x", 0x8086, 0x0BD5, 0x002F, domain, bus, device, function))
