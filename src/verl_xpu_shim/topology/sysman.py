"""The Intel GPUs as Level Zero Sysman lists them, numbered as torch numbers them.

Sysman is asked through pyzes, as ``torch.xpu`` itself asks (``_enum_zes_device_infos``, torch 2.13), and
by ``zesInit`` alone: ``ZES_ENABLE_SYSMAN`` is the legacy way, makes a later ``zesInit`` of torch's fail and
isn't supported from Xe2 on.
Nothing here initialises the Level Zero core, so a process may still fork, and choose a mask, afterwards.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from collections.abc import Mapping
from ctypes import byref
from ctypes import c_uint32
from ctypes import c_void_p
from ctypes import cast
from ctypes import pointer
from typing import Any
from typing import Final
from typing import NamedTuple

import importlib_metadata

MINIMUM_PYZES: Final = "0.1.2"
"""The first pyzes with ``zesDevicePciGetProperties``."""

_INTEGRATED: Final = 1  # ZES_DEVICE_PROPERTY_FLAG_INTEGRATED, which pyzes 0.1.3 doesn't name


class Unavailable(RuntimeError):
    """The inventory can't be taken here; the text says why and what to do."""


class Gpu(NamedTuple):
    """One device as torch could number it: a GPU, or one tile of it."""

    mask_index: int
    """What ``ZE_AFFINITY_MASK`` calls it."""
    address: str
    """PCI address as sysfs writes it, e.g. ``0000:3d:00.0``."""
    tile: int | None
    """The tile, where each is a device of its own; else None."""
    integrated: bool
    name: str


def all_gpus(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Every GPU of the first driver, whatever the mask, tiles counted as ``ZE_FLAT_DEVICE_HIERARCHY`` says.

    Raises:
        Unavailable: no or too old pyzes, no or too old Level Zero loader, or Sysman reports an error.
    """
    composite = environ.get("ZE_FLAT_DEVICE_HIERARCHY") == "COMPOSITE"
    gpus: list[Gpu] = []
    for name, address, integrated, tiles in _sysman_devices():
        split = tiles > 0 and not integrated and not composite
        for tile in range(tiles) if split else (None,):
            gpus.append(Gpu(len(gpus), address, tile, integrated, name))
    return gpus


def torch_gpus(environ: Mapping[str, str] = os.environ) -> list[Gpu]:
    """The GPUs of this process: the one at position ``i`` is torch's ``xpu:i``.

    Raises:
        Unavailable: as ``all_gpus``.
        ValueError: ``ZE_AFFINITY_MASK`` isn't a list of integers.
    """
    mask = parse_mask(environ.get("ZE_AFFINITY_MASK"))
    visible = [gpu for gpu in all_gpus(environ) if mask is None or gpu.mask_index in mask]
    # torch leaves integrated GPUs out as soon as there is another.
    return [gpu for gpu in visible if not gpu.integrated] or visible


def parse_mask(mask: str | None) -> frozenset[int] | None:
    """The devices that ``ZE_AFFINITY_MASK`` lets through; None for all. Its order means nothing to Level Zero.

    Raises:
        ValueError: the mask is empty or names tiles (``0.1``); torch then asks the runtime, so no order is known.
    """
    if mask is None:
        return None
    try:
        return frozenset(index for index in map(int, mask.split(",")) if index >= 0)
    except ValueError:
        raise ValueError(
            f"ZE_AFFINITY_MASK={mask!r} isn't a list of device numbers such as 0,1. Unset it, or name whole devices: "
            "with ZE_FLAT_DEVICE_HIERARCHY=FLAT (the default) each tile is a device with a number of its own."
        ) from None


def pyzes_version() -> str | None:
    """The version of the installed pyzes; None where there is none."""
    try:
        return importlib_metadata.version("pyzes")
    except importlib_metadata.PackageNotFoundError:
        return None


def _import_pyzes() -> Any:
    version = pyzes_version()
    try:
        pyzes: Any = importlib.import_module("pyzes")
    except ImportError:
        raise Unavailable("pyzes isn't installed: pip install 'pyzes>=0.1.2'") from None
    except OSError as error:  # raised by its CDLL(…) at import
        raise Unavailable(f"pyzes {version} can't load the Level Zero loader ({error}): install libze1") from None
    if not hasattr(pyzes, "zesDevicePciGetProperties"):
        raise Unavailable(f"pyzes {version} can't read PCI addresses: pip install 'pyzes>={MINIMUM_PYZES}'")
    return pyzes


def _sysman_devices() -> Iterator[tuple[str, str, bool, int]]:
    """Name, PCI address, integrated or not, number of tiles of each device."""
    pyzes = _import_pyzes()

    def call(function: str, *arguments: object) -> None:
        try:
            code = getattr(pyzes, function)(*arguments)
        except AttributeError:
            raise Unavailable(
                f"the Level Zero loader has no {function}, it is too old for pyzes {pyzes_version()}: "
                "install a newer libze1 (1.20.6 works, Debian 12's 1.8.12 doesn't)"
            ) from None
        if code != pyzes.ZE_RESULT_SUCCESS:
            raise Unavailable(f"{function} returned {code & 0xFFFFFFFF:#x}")

    def handles(function: str, kind: Any, *parent: object) -> Any:
        count = c_uint32()
        call(function, *parent, byref(count), None)
        found = (kind * count.value)()
        call(function, *parent, byref(count), found)
        return found

    call("zesInit", 0)
    drivers = handles("zesDriverGet", pyzes.zes_driver_handle_t)
    for device in handles("zesDeviceGet", pyzes.zes_device_handle_t, drivers[0]) if drivers else ():
        # Drivers read stype and follow pNext, so neither may be left as ctypes makes it
        # (https://github.com/intel/compute-runtime/issues/900). Only the extension knows integrated GPUs.
        extension = pyzes.zes_device_ext_properties_t(stype=pyzes.ZES_STRUCTURE_TYPE_DEVICE_EXT_PROPERTIES)
        properties = pyzes.zes_device_properties_t(stype=pyzes.ZES_STRUCTURE_TYPE_DEVICE_PROPERTIES)
        properties.pNext = cast(pointer(extension), c_void_p)
        pci = pyzes.zes_pci_properties_t(stype=pyzes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES)
        call("zesDeviceGetProperties", device, byref(properties))
        call("zesDevicePciGetProperties", device, byref(pci))
        at = pci.address
        yield (
            properties.modelName.decode(errors="replace"),
            f"{at.domain:04x}:{at.bus:02x}:{at.device:02x}.{at.function:x}",
            bool(extension.flags & _INTEGRATED),
            properties.numSubdevices,
        )
