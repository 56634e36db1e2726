"""Which devices a process sees, and as what it gets in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .harness import environment


def python(code: str, env: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def say(code: str, env: dict[str, str], *options: str) -> Any:
    done = python(code, env, *options)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


VISIBLE = "import json; from xpu_emu import visible_devices; print(json.dumps(visible_devices.visible()))"


@pytest.mark.parametrize(
    ("mask", "physical"),
    [
        (None, [0, 1, 2, 3]),
        ("", [0, 1, 2, 3]),
        ("default", [0, 1, 2, 3]),
        ("1", [1]),
        ("3,1", [1, 3]),
        (" 2, 2", [2]),
        ("9", []),
        ("0,9,-1", [0]),
        ("0.1", []),
        ("0.0,2", [2]),
    ],
)
def test_masks(mask: str | None, physical: list[int]) -> None:
    env = environment(devices=4, **({} if mask is None else {"ZE_AFFINITY_MASK": mask}))
    assert say(VISIBLE, env) == physical
    count = "import json, dpctl; print(json.dumps(dpctl.SyclContext('level_zero:gpu').device_count))"
    if physical:
        assert say(count, env) == len(physical)
    else:
        assert "SyclContext failed" in python(count, env).stderr


@pytest.mark.parametrize(
    ("selector", "mask", "physical"),
    [
        ("level_zero:0,1", "2,3", [2, 3]),
        ("level_zero:1", "2,3", [3]),
        ("level_zero:gpu", "2,3", [2, 3]),
        ("*:*", "", [0, 1, 2, 3]),
        ("opencl:*", "", []),
        ("opencl:*;level_zero:3", "", [3]),
    ],
)
def test_selectors_are_relative_to_the_mask(selector: str, mask: str, physical: list[int]) -> None:
    env = environment(devices=4, ZE_AFFINITY_MASK=mask, ONEAPI_DEVICE_SELECTOR=selector)
    assert say(VISIBLE, env) == physical


def test_a_mask_that_is_no_mask_stops_the_process() -> None:
    for variable in ("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR"):
        done = python("import torch; torch.xpu.init()", environment(**{variable: "not set"}))
        assert "DriverError" in done.stderr
        assert f"{variable}='not set'" in done.stderr


def test_the_mask_is_fixed_when_the_device_is_first_used() -> None:
    code = """
import json, os, torch
os.environ["ZE_AFFINITY_MASK"] = "2,3"      # after the import of torch: in time
torch.xpu.set_device(1)
os.environ["ZE_AFFINITY_MASK"] = "0"        # too late
p = torch.xpu.get_device_properties()
print(json.dumps([torch.xpu.device_count(), p.physical_index, p.pci_address]))
"""
    addresses = ",".join(f"0000:{bus}:00.0" for bus in ("3d", "4e", "5f", "70"))
    assert say(code, environment(devices=4, pci=addresses)) == [2, 3, "0000:70:00.0"]
    none = python("import torch; torch.ones(1, device='xpu')", environment(ZE_AFFINITY_MASK="7"))
    assert "No XPU devices are available" in none.stderr


def test_identity_is_the_same_in_every_process() -> None:
    code = "import json, torch; print(json.dumps(str(torch.xpu.get_device_properties(0).uuid)))"
    one = say(code, environment(devices=4, ZE_AFFINITY_MASK="3"))
    other = say(code.replace("(0)", "(1)"), environment(devices=4, ZE_AFFINITY_MASK="3,1"))
    assert one == other


def test_it_says_so_as_early_as_an_xpu_build_does() -> None:
    """torch.distributed is imported by torch's own body; who patches it then asks for the build."""
    code = """
import importlib.abc, json, sys
seen = {}
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("torch.distributed", "torch.xpu", "torch.nn"):
            seen[name] = sys.modules["torch.version"].xpu
sys.meta_path.insert(0, Finder())
import torch
print(json.dumps([seen, sys.modules["torch.version"].xpu]))
"""
    seen, version = say(code, environment(version="20260000"))
    assert version == "20260000"
    assert seen == dict.fromkeys(("torch.distributed", "torch.xpu", "torch.nn"), "20260000")


@pytest.mark.parametrize("position", ["insert(0,", "append("])
def test_it_gets_along_with_other_finders(position: str) -> None:
    code = f"""
import importlib.machinery, json, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return importlib.machinery.PathFinder.find_spec(name, path, target)
sys.meta_path.{position} Finder())
import torch
print(json.dumps(torch.xpu.device_count()))
"""
    # One that answers in front, and doesn't ask those behind it, hides this one as it hides everybody.
    assert say(code, environment()) == (0 if position == "insert(0," else 2)


@pytest.mark.parametrize("options", [(), ("-I",), ("-P",), ("-X", "frozen_modules=off")])
def test_every_kind_of_interpreter_has_it(options: tuple[str, ...]) -> None:
    if options == ("-P",) and sys.version_info < (3, 11):
        pytest.skip("-P is new in Python 3.11")
    code = """
import json, subprocess, sys, multiprocessing
if __name__ == "__main__":
    child = [sys.executable, "-c", "import torch; print(torch.xpu.device_count())"]
    print(json.dumps(int(subprocess.check_output(child))))
"""
    assert say(code, environment(devices=3), *options) == 3


def test_without_emulation_nothing_is_there() -> None:
    env = {name: value for name, value in environment().items() if name != "XPU_EMU"}
    code = """
import json, sys
armed = [type(finder).__module__ for finder in sys.meta_path] + list(sys.modules) + sys.path
import torch
ours = [name for name in armed if "xpu_emu" in name or "emulated" in name]
print(json.dumps([ours, torch.version.xpu, torch.xpu.is_available()]))
"""
    assert say(code, env) == [[], None, False]


def test_ray_sees_no_device_without_dpctl() -> None:
    assert "No module named 'dpctl'" in python("import dpctl", environment(dpctl="0")).stderr


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    done = python("import torch", environment(cache=str(tmp_path)))
    assert "build.py" in done.stderr
    assert str(tmp_path) in done.stderr
    assert os.listdir(tmp_path) == []
