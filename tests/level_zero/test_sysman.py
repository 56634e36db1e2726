"""Our device order against torch's own, both asked through real pyzes in one child process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from . import stub

TWO_TILES_ONE_AND_INTEGRATED = "0000:3d:00.0/name=Max 1550/tiles=2,0000:4e:00.0/name=Max 1100,0000:00:02.0/igpu"
INTEGRATED_FIRST = "0000:00:02.0/igpu,0000:3d:00.0/tiles=2,0001:4e:00.0"
ONLY_INTEGRATED = "0000:00:02.0/igpu"
TWO_DRIVERS = "0000:3d:00.0;0000:4e:00.0"

# torch leaves the answer to the runtime where the mask is empty or names tiles: no order is known.
UNKNOWN = ("", "0.1", "0.0,0.1", "not set")
MASKS = (None, "0", "1", "2", "3", "9", "0,1", "1,0", "3,0", "0,0", " 1 , 2 ", "-1,1", "0,1,2,3", *UNKNOWN)
HIERARCHIES = (None, "FLAT", "COMBINED", "COMPOSITE")

BOTH = """
import contextlib, json, sys, warnings
from ctypes import byref
import pyzes, torch
from torch import xpu
from verl_xpu_shim.topology import sysman

def theirs():
    xpu._cached_zes_device_infos.clear()
    if xpu._device_count_zes() < 0:
        return "unknown"
    found = []
    for info in xpu._cached_zes_device_infos:
        pci = pyzes.zes_pci_properties_t(stype=pyzes.ZES_STRUCTURE_TYPE_PCI_PROPERTIES)
        assert pyzes.zesDevicePciGetProperties(info.device_handle, byref(pci)) == 0
        at = pci.address
        found.append([f"{at.domain:04x}:{at.bus:02x}:{at.device:02x}.{at.function:x}", info.subdevice_id])
    return found

def ours():
    try:
        return [[gpu.address, gpu.tile] for gpu in sysman.torch_gpus()]
    except ValueError:
        return "unknown"

import os
table = []
for mask, hierarchy in json.loads(sys.argv[1]):
    for key, value in (("ZE_AFFINITY_MASK", mask), ("ZE_FLAT_DEVICE_HIERARCHY", hierarchy)):
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    table.append([mask, hierarchy, ours(), theirs()])
print(json.dumps(table))
"""

ORDER = """
import json
from verl_xpu_shim.topology import sysman
print(json.dumps(sysman.torch_gpus()))
"""

FAILURE = """
import json
from verl_xpu_shim.topology import sysman
try:
    sysman.torch_gpus()
except sysman.Unavailable as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize(
    "devices", [TWO_TILES_ONE_AND_INTEGRATED, INTEGRATED_FIRST, ONLY_INTEGRATED, TWO_DRIVERS, "0000:3d:00.0/noext"]
)
def test_every_ordinal_has_the_address_that_torch_gives_it(level_zero: Path, way: str, devices: str) -> None:
    cases = [(mask, hierarchy) for mask in MASKS for hierarchy in HIERARCHIES]
    table = stub.run(BOTH, stub.environment(level_zero, way, devices), json.dumps(cases))
    assert len(table) == len(cases)
    for mask, hierarchy, ours, theirs in table:
        assert ours == theirs, (mask, hierarchy)
        assert (ours == "unknown") == (mask in UNKNOWN)


@pytest.mark.parametrize(
    ("mask", "hierarchy", "expected"),
    [
        (None, None, [("3d", 0), ("3d", 1), ("4e", None)]),
        (None, "FLAT", [("3d", 0), ("3d", 1), ("4e", None)]),
        (None, "COMBINED", [("3d", 0), ("3d", 1), ("4e", None)]),
        (None, "COMPOSITE", [("3d", None), ("4e", None)]),
        ("1,0", None, [("3d", 0), ("3d", 1)]),
        ("2", None, [("4e", None)]),
        ("3", None, [("00", None)]),
        ("2", "COMPOSITE", [("00", None)]),
        ("9", None, []),
    ],
)
def test_tiles_masks_and_integrated_gpus(
    level_zero: Path, way: str, mask: str | None, hierarchy: str | None, expected: list[tuple[str, int | None]]
) -> None:
    values = {"ZE_AFFINITY_MASK": mask, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    env = stub.environment(
        level_zero, way, TWO_TILES_ONE_AND_INTEGRATED, **{k: v for k, v in values.items() if v is not None}
    )
    found = stub.run(ORDER, env)
    assert [(address[5:7], tile) for _, address, tile, _, _ in found] == expected


def test_sysman_alone_is_initialised_and_not_by_the_legacy_way(level_zero: Path, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    env = stub.environment(level_zero, "direct", TWO_TILES_ONE_AND_INTEGRATED, STUB_ZE_LOG=str(log))
    legacy = "import os; before = dict(os.environ)\n" + ORDER + "assert dict(os.environ) == before\n"
    stub.run(legacy, env)
    calls = [line.split()[1] for line in log.read_text().splitlines()]
    assert "zesInit" in calls
    assert "zeInit" not in calls


def test_the_inventory_works_in_a_child_after_a_fork(level_zero: Path, way: str) -> None:
    code = (
        "import json, os\nfrom verl_xpu_shim.topology import sysman\nparent = sysman.torch_gpus()\n"
        "r, w = os.pipe()\n"
        "if os.fork() == 0:\n    os.write(w, json.dumps(sysman.torch_gpus() == parent).encode()); os._exit(0)\n"
        "os.wait(); print(os.read(r, 100).decode())\n"
    )
    assert stub.run(code, stub.environment(level_zero, way, INTEGRATED_FIRST)) is True


@pytest.mark.parametrize(
    ("devices", "more", "expected"),
    [
        ("", {}, "zesInit returned 0x78000001"),  # a loader without a driver, or without a device
        ("0000:3d:00.0", {"STUB_ZE_INIT": "78000002"}, "zesInit returned 0x78000002"),
    ],
)
def test_a_failing_sysman_is_named(level_zero: Path, devices: str, more: dict[str, str], expected: str) -> None:
    assert stub.run(FAILURE, stub.environment(level_zero, "direct", devices, **more)) == expected


def test_no_loader_is_named(tmp_path: Path) -> None:
    if Path(stub.LOADER).exists():
        pytest.skip(f"{stub.LOADER} exists here")
    said = json.loads(subprocess.check_output([sys.executable, "-c", FAILURE], text=True))
    assert "can't load the Level Zero loader" in said
    assert "libze1" in said


def test_a_loader_without_zesinit_is_named(level_zero: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.so"
    source = tmp_path / "old.c"
    source.write_text("int zeInit(unsigned f) { (void)f; return 0; }\n")
    subprocess.run(["cc", "-shared", "-fPIC", f"-Wl,-soname,{stub.LOADER}", "-o", old, source], check=True)
    env = stub.environment(level_zero, "direct", "0000:3d:00.0") | {"STUB_ZE_LIBRARY": str(old)}
    said = stub.run(FAILURE, env)
    assert "has no zesInit" in said
    assert "too old" in said


def test_a_pyzes_without_pci_addresses_is_named(level_zero: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", tmp_path, "pyzes==0.1.1"], check=True
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    env = stub.environment(level_zero, "direct", "0000:3d:00.0", PYTHONPATH=path)
    assert stub.run(FAILURE, env) == "pyzes 0.1.1 can't read PCI addresses: pip install 'pyzes>=0.1.2'"
