"""verl's own `set_numa_affinity` on an emulated device; real pyzes before the stub driver, a sysfs in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import stub
from .test_numa import FIRST
from .test_numa import SECOND
from .test_numa import TWO
from .test_numa import sysfs

CODE = """
import json, logging, os, pathlib, sys, threading
ordinal, root = int(sys.argv[1]), pathlib.Path(sys.argv[2])
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append([record.levelname, record.getMessage()])
logging.getLogger("verl_xpu_shim").addHandler(handler)
logging.getLogger("verl_xpu_shim").setLevel("INFO")
release = threading.Event()
threading.Thread(target=release.wait, daemon=True).start()
import torch
from verl.utils.distributed import set_numa_affinity
from verl_xpu_shim.topology import numa
numa.SYSFS = root
torch.xpu.set_device(ordinal)
result = set_numa_affinity()
found = {numa.format_cpulist(os.sched_getaffinity(int(task))) for task in os.listdir("/proc/self/task")}
release.set()
print(json.dumps([result, sorted(found), lines, "ZES_ENABLE_SYSMAN" in os.environ]))
"""

EMULATED = {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": "2"}


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
@pytest.mark.parametrize(("ordinal", "cpu"), [(0, FIRST), (1, SECOND)])
def test_a_worker_is_pinned_beside_its_device(level_zero: Path, tmp_path: Path, ordinal: int, cpu: int) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, str(FIRST)), "0001:bd:00.0": (1, str(SECOND))})
    env = stub.environment(level_zero, "direct", TWO, **EMULATED)
    result, found, lines, legacy = stub.run(CODE, env, str(ordinal), str(root))
    assert result is None
    assert found == [str(cpu)]
    ((level, line),) = lines
    assert level == "INFO"
    assert line.startswith(f"xpu:{ordinal} (")
    assert f"NUMA node {ordinal}: pinned to CPUs {cpu}" in line
    assert not legacy


@pytest.mark.parametrize(
    ("devices", "reason"),
    [
        ({"0000:3d:00.0": (-1, "0-1")}, "the firmware names no NUMA node"),
        ({"0000:3d:00.0": (0, "4096")}, "none of the CPUs 4096"),
        ({}, "can't read"),
    ],
)
def test_what_cannot_be_pinned_is_one_line_and_no_error(
    level_zero: Path, tmp_path: Path, devices: dict[str, tuple[int, str]], reason: str
) -> None:
    env = stub.environment(level_zero, "direct", TWO, **EMULATED)
    _, found, lines, _ = stub.run(CODE, env, "0", str(sysfs(tmp_path, devices)))
    assert found == [found[0]]
    ((level, line),) = lines
    assert level == "WARNING"
    assert line.startswith("xpu:0: CPU affinity left as it is: ")
    assert reason in line
    assert "\n" not in line


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
def test_without_the_capability_nothing_is_pinned(level_zero: Path, tmp_path: Path) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, str(FIRST))})
    off = {"VERL_XPU_SHIM_DISABLE": "numa_affinity"}
    env = stub.environment(level_zero, "direct", TWO, **EMULATED, **off)
    _, found, lines, _ = stub.run(CODE, env, "0", str(root))
    assert found != [str(FIRST)]
    assert lines == []
