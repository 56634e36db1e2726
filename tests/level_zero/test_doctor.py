"""The doctor and the NUMA probe: on this machine, under emulation, and before the stub driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from . import stub
from .test_numa import FIRST
from .test_numa import SECOND
from .test_numa import TWO
from .test_numa import sysfs

EMULATED = {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": "2"}
MINE = ("ZE_", "ZES_", "ONEAPI_", "RAY_", "XPU_EMU", "VERL_")


def call(*arguments: str, **environment: str) -> tuple[int, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(MINE)} | environment
    command = [sys.executable, "-m", "verl_xpu_shim", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def doctor(**environment: str) -> tuple[int, dict[str, Any], dict[str, list[str]]]:
    status, text = call("doctor", "--json", **environment)
    report = json.loads(text)
    wrong: dict[str, list[str]] = {}
    for finding in report["findings"]:
        if not finding["ok"]:
            wrong.setdefault(finding["topic"], []).append(finding["text"])
    assert report["ok"] is (not wrong)
    assert status == int(bool(wrong))
    return status, report, wrong


def test_a_machine_with_none_of_it_reads_well() -> None:
    status, text = call("doctor")
    assert status == 0
    assert "isn't an XPU build, so the shim leaves this environment as it is." in text
    assert text.rstrip().endswith("Nothing wrong was found.")
    assert max(map(len, text.splitlines())) < 200


def test_emulated_devices_are_told_with_what_ray_makes_of_them() -> None:
    _, report, wrong = doctor(**EMULATED, ZE_AFFINITY_MASK="1")
    assert len(report["devices"]) == 1
    assert report["xpu_build"]
    texts = [finding["text"] for finding in report["findings"]]
    assert any(text.startswith("xpu:0 is Intel(R) Data Center GPU Max 1550") for text in texts)
    assert "ZE_AFFINITY_MASK=1 chooses the devices, in their own order; it wins." in texts
    assert "Ray counts 1 GPU(s) here, torch 1." in texts
    assert set(wrong) <= {"Libraries"}  # there is no Level Zero loader here


@pytest.mark.parametrize(
    ("environment", "topic", "said"),
    [
        ({"XPU_EMU_DPCTL": "0"}, "Ray", "+ray_kwargs.ray_init.num_gpus=2"),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:0"}, "Variables", "ONEAPI_DEVICE_SELECTOR=level_zero:0 chooses"),
        ({"ZES_ENABLE_SYSMAN": "1"}, "Variables", "unset it"),
        ({"ZE_AFFINITY_MASK": "0.1"}, "Variables", "isn't a list of device numbers"),
        ({"ZE_AFFINITY_MASK": ""}, "Variables", "set but empty"),
    ],
)
def test_what_is_wrong_is_named(environment: dict[str, str], topic: str, said: str) -> None:
    _, _, wrong = doctor(**EMULATED, **environment)
    assert any(said in text for text in wrong[topic]), wrong


NUMA = """
import json, pathlib, sys
from verl_xpu_shim import doctor
from verl_xpu_shim.topology import numa
numa.SYSFS = pathlib.Path(sys.argv[1])
print(json.dumps(doctor.collect()))
"""


def test_the_numa_map_and_the_bus(level_zero: Path, tmp_path: Path) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, str(FIRST)), "0001:bd:00.0": (1, str(SECOND))})
    for address, kind in (("0000:3d:00.0", "0x038000"), ("0001:bd:00.0", "0x030000"), ("0000:01:00.0", "0x020000")):
        folder = root / "bus/pci/devices" / address
        folder.mkdir(exist_ok=True)
        for name, text in {"vendor": "0x8086", "class": kind, "device": "0x0bd5"}.items():
            (folder / name).write_text(text + "\n")
    report = stub.run(NUMA, stub.environment(level_zero, "direct", TWO, **EMULATED), str(root))
    assert [card["address"] for card in report["hardware"]] == ["0000:3d:00.0", "0001:bd:00.0"]
    assert [(device["address"], device["node"], device["cpus"]) for device in report["devices"]] == [
        ("0000:3d:00.0", 0, str(FIRST)),
        ("0001:bd:00.0", 1, str(SECOND)),
    ]
    texts = [finding["text"] for finding in report["findings"]]
    assert f"xpu:1 (0001:bd:00.0) is on node 1: CPUs {SECOND}." in texts
    assert any("kernel driver missing" in text for text in texts)


def test_hardware_without_an_xpu_build_is_wrong(level_zero: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bus/pci/devices/0000:3d:00.0"
    folder.mkdir(parents=True)
    for name, text in {"vendor": "0x8086", "class": "0x038000", "device": "0x0bd5"}.items():
        (folder / name).write_text(text)
    report = stub.run(NUMA, stub.environment(level_zero, "direct", TWO), str(tmp_path))
    wrong = [finding["text"] for finding in report["findings"] if not finding["ok"]]
    assert any("install the XPU build" in text for text in wrong)
    assert not report["ok"]


PROBE = """
import json, os, subprocess, sys
code = "import ctypes, os; ctypes.CDLL(os.environ['STUB_ZE_LIBRARY']); from verl_xpu_shim.probes import numa; {}"
import verl_xpu_shim.probes.numa as probe
# The processes that the probe starts need the stub first, too.
started = probe.subprocess.run
probe.subprocess.run = lambda command, **kw: started(
    [*command[:2], "import ctypes, os; ctypes.CDLL(os.environ['STUB_ZE_LIBRARY'])\\n" + command[2], *command[3:]], **kw)
status = probe.main(["--sysfs", sys.argv[1], *sys.argv[2:]])
print(json.dumps(status))
"""


@pytest.mark.skipif(FIRST == SECOND, reason="needs two CPUs")
def test_the_numa_probe_reads_back_where_each_process_may_run(level_zero: Path, tmp_path: Path) -> None:
    root = sysfs(tmp_path, {"0000:3d:00.0": (0, str(FIRST)), "0001:bd:00.0": (1, str(SECOND))})
    env = stub.environment(level_zero, "direct", TWO)
    command = [sys.executable, "-c", stub.PRELOAD + PROBE, str(root)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == [
        f"xpu:0: 0000:3d:00.0, node 0: all 1 thread(s) on CPUs {FIRST}",
        f"xpu:1: 0001:bd:00.0, node 1: all 1 thread(s) on CPUs {SECOND}",
        "0",
    ], done.stderr


def test_the_numa_probe_on_a_machine_with_none_of_it() -> None:
    status, text = call("probe", "numa")
    assert status == 1
    assert text.startswith("Nothing to probe: ")
    status, text = call("probe", "numa", "--json")
    assert json.loads(text)["devices"] == []


@pytest.mark.parametrize(
    ("environment", "ok", "said"),
    [
        ({}, True, " has verl-xpu-shim "),
        ({"VERL_XPU_SHIM": "0"}, False, "its workers don't load it: see VERL_XPU_SHIM there."),
    ],
)
def test_each_node_of_a_cluster_is_asked(environment: dict[str, str], ok: bool, said: str) -> None:
    """`local` starts a Ray of one node, in the environment of the doctor."""
    _, text = call("doctor", "--ray", "local", "--json", **environment)
    nodes = [finding for finding in json.loads(text)["findings"] if finding["topic"] == "Ray cluster"]
    assert [finding["ok"] for finding in nodes] == [ok]
    assert said in nodes[0]["text"]


def test_a_cluster_that_cannot_be_reached_is_named() -> None:
    status, text = call("doctor", "--ray", "ray://127.0.0.1:1", RAY_CLIENT_RECONNECT_GRACE_PERIOD="1")
    assert status == 1
    assert "ray://127.0.0.1:1 can't be reached: " in text


def test_a_node_without_the_shim_can_say_so() -> None:
    """What is sent to a node unpickles and runs where none of the shim's packages can be imported."""
    from ray import cloudpickle

    from verl_xpu_shim.probes.ray_nodes import _by_value
    from verl_xpu_shim.probes.ray_nodes import _judge

    code = (
        "import json, pickle, sys\n"
        "for name in ('verl_xpu_shim', 'xpu_sitecustomize'): sys.modules[name] = None\n"
        "print(json.dumps(pickle.loads(sys.stdin.buffer.read())()))\n"
    )
    sent = cloudpickle.dumps(_by_value())
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found == {"version": None, "in": False}
    assert _judge("here", 4, "0.1.0", found) == (False, "here lacks verl-xpu-shim: install 0.1.0 there.")
    assert "install the same everywhere" in _judge("here", 4, "0.1.0", {"version": "0.0.9", "in": True})[1]
