"""From a torch ordinal to the CPUs a process ends on: real pyzes, a sysfs tree in a folder, the real kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_xpu_shim.topology import numa

from . import stub

FIRST, SECOND = sorted(os.sched_getaffinity(0))[:2] if len(os.sched_getaffinity(0)) > 1 else (0, 0)
TWO = "0000:3d:00.0,0000:00:02.0/igpu,0001:bd:00.0"

PIN = """
import json, os, pathlib, sys, threading
from verl_xpu_shim.topology import numa
release = threading.Event()
thread = threading.Thread(target=release.wait, daemon=True)
thread.start()
place = numa.place(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
numa.pin(place.cpus)
later = threading.Thread(target=release.wait, daemon=True)
later.start()
allowed = {}
for task in pathlib.Path("/proc/self/task").iterdir():
    status = (task / "status").read_text()
    allowed[task.name] = status.split("Cpus_allowed_list:")[1].split()[0]
release.set()
print(json.dumps([place.gpu.address, place.node, allowed]))
"""

REFUSE = """
import json, os, pathlib, sys
from verl_xpu_shim.topology import numa
before = os.sched_getaffinity(0)
try:
    numa.place(int(sys.argv[1]), pathlib.Path(sys.argv[2]))
except numa.NotPinned as reason:
    assert os.sched_getaffinity(0) == before
    print(json.dumps(str(reason)))
"""


def sysfs(root: Path, devices: dict[str, tuple[int, str]]) -> Path:
    for address, (node, cpus) in devices.items():
        folder = root / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text(f"{node}\n")
        (folder / "local_cpulist").write_text(f"{cpus}\n")
    return root


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
@pytest.mark.parametrize(
    ("mask", "ordinal", "expected"),
    [
        (None, 0, ("0000:3d:00.0", 0, FIRST)),
        (None, 1, ("0001:bd:00.0", 1, SECOND)),
        ("2", 0, ("0001:bd:00.0", 1, SECOND)),  # torch's xpu:0, whatever Ray calls it
        ("2,0", 0, ("0000:3d:00.0", 0, FIRST)),
    ],
)
def test_each_process_is_pinned_beside_its_device(
    level_zero: Path, way: str, tmp_path: Path, mask: str | None, ordinal: int, expected: tuple[str, int, int]
) -> None:
    address, node, cpu = expected
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, str(FIRST)), "0001:bd:00.0": (1, str(SECOND))})
    env = stub.environment(level_zero, way, TWO, **({} if mask is None else {"ZE_AFFINITY_MASK": mask}))
    found, where, threads = stub.run(PIN, env, str(ordinal), str(root))
    assert (found, where) == (address, node)
    assert len(threads) >= 3  # the main one, one from before, one from after
    assert set(threads.values()) == {str(cpu)}


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        ((-1, "0-1"), "the firmware names no NUMA node for 0000:3d:00.0"),
        ((0, ""), "NUMA node 0 of 0000:3d:00.0 has no CPUs"),
        ((1, "4096-4097"), "none of the CPUs 4096-4097 of 0000:3d:00.0 (NUMA node 1) is among those that this process"),
    ],
)
def test_what_cannot_be_pinned_is_one_line(
    level_zero: Path, tmp_path: Path, device: tuple[int, str], reason: str
) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": device})
    said = stub.run(REFUSE, stub.environment(level_zero, "direct", TWO), "0", str(root))
    assert said.startswith(reason)
    assert "\n" not in said


@pytest.mark.parametrize(
    ("mask", "ordinal", "reason"),
    [
        (None, 2, "Level Zero Sysman lists 2 device(s), so it has no xpu:2"),
        (None, 0, "can't read "),  # an address that sysfs doesn't know
        ("0.1", 0, "ZE_AFFINITY_MASK='0.1' isn't a list of device numbers"),
    ],
)
def test_a_device_that_cannot_be_found_is_one_line(
    level_zero: Path, tmp_path: Path, mask: str | None, ordinal: int, reason: str
) -> None:
    env = stub.environment(level_zero, "direct", TWO, **({} if mask is None else {"ZE_AFFINITY_MASK": mask}))
    said = stub.run(REFUSE, env, str(ordinal), str(tmp_path))
    assert said.startswith(reason)
    assert "\n" not in said


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
def test_a_container_s_cpuset_is_respected(level_zero: Path, tmp_path: Path) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, f"{FIRST},{SECOND},4096")})
    code = f"import os; os.sched_setaffinity(0, {{{SECOND}}})\n" + PIN
    _, _, threads = stub.run(code, stub.environment(level_zero, "direct", TWO), "0", str(root))
    assert set(threads.values()) == {str(SECOND)}


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
def test_a_thread_bound_more_narrowly_stays_so() -> None:
    code = f"""
import os, threading
from verl_xpu_shim.topology import numa
bound, release, inner = threading.Event(), threading.Event(), set()
def worker():
    os.sched_setaffinity(0, {{{FIRST}}})
    bound.set(); release.wait()
    inner.update(os.sched_getaffinity(0))
thread = threading.Thread(target=worker); thread.start(); bound.wait()
numa.pin({{{FIRST}, {SECOND}}})
release.set(); thread.join()
print(sorted(inner), sorted(os.sched_getaffinity(0)))
"""
    said = subprocess.check_output([sys.executable, "-c", code], text=True)
    assert said.split("\n")[0] == f"[{FIRST}] [{FIRST}, {SECOND}]"


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("\n", ()), ("3", (3,)), ("0-2", (0, 1, 2)), ("0-1,8,10-11\n", (0, 1, 8, 10, 11))],
)
def test_cpulists(text: str, cpus: tuple[int, ...]) -> None:
    assert numa.parse_cpulist(text) == frozenset(cpus)
    assert numa.format_cpulist(cpus) == text.strip()


def test_this_machine_s_own_sysfs_is_understood() -> None:
    online = Path("/sys/devices/system/cpu/online").read_text()
    assert json.loads(json.dumps(sorted(numa.parse_cpulist(online))))
    assert numa.parse_cpulist(online) >= os.sched_getaffinity(0)
