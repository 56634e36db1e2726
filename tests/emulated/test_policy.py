"""What happens when a capability can't be installed, on an XPU build and without one. Real verl, made to drift."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from wheels import installed

#: file, what is there, what it becomes.
NEW_PLATFORM = (
    "verl/plugin/platform/platform_base.py",
    "    def cudart(self)",
    "    def teleport(self): ...\n\n    @abc.abstractmethod\n    def cudart(self)",
)
NEW_PARAMETER = (
    "verl/utils/attention_utils.py",
    "def _get_attention_functions()",
    "def _get_attention_functions(device=0)",
)
NEW_MARKER = (
    "verl/utils/profiler/profile.py",
    "def mark_start_range(\n    message:",
    "def mark_start_range(\n    text:",
)


@pytest.fixture
def verl(tmp_path: Path) -> Path:
    """A folder for PYTHONPATH with a copy of verl to change."""
    shutil.copytree(installed("verl==0.9.1"), tmp_path / "site", symlinks=True)
    return tmp_path / "site"


def change(site: Path, file: str, old: str, new: str) -> None:
    source = (site / file).read_text()
    assert old in source, f"{file} has changed: choose another drift"
    (site / file).write_text(source.replace(old, new))


def run(site: Path, code: str, emulated: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("XPU_EMU")}
    env |= {"PYTHONPATH": str(site), "OMP_NUM_THREADS": "1", **({"XPU_EMU": "1"} if emulated else {}), **environment}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_required_capability_that_drifts_stops_the_import_and_says_all(verl: Path) -> None:
    change(verl, *NEW_PLATFORM)
    again = "try:\n import verl\nexcept RuntimeError as error: print('FIRST', error)\nimport verl"
    done = run(verl, again)
    assert done.returncode == 1
    assert done.stdout.startswith("FIRST verl-xpu-shim can't install the required capability 'platform'")
    last = done.stderr.strip().splitlines()[-1]  # the second import is refused as well
    for part in (
        "'platform'",
        "verl.plugin.platform.platform_base",
        "verl 0.9.1",
        "found also teleport",
        "DISABLE=platform",
    ):
        assert part in last, part


def test_a_refusal_needs_nothing_that_may_be_missing(verl: Path) -> None:
    change(verl, *NEW_PLATFORM)
    done = run(verl, "import sys; sys.modules['importlib_metadata'] = None\nimport verl; print('WENT ON')")
    assert done.returncode == 1
    assert "WENT ON" not in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "the required capability 'platform'" in last
    assert "platform_base.py" in last  # where there is no version to name, the file


def test_a_plain_runtime_error_catches_it(verl: Path) -> None:
    change(verl, *NEW_PARAMETER)
    code = "try:\n import verl.utils.attention_utils\nexcept RuntimeError as error: print('STOPPED', error)"
    done = run(verl, code)
    assert "STOPPED" in done.stdout
    assert "expected _get_attention_functions(), found _get_attention_functions(device)" in done.stdout


def test_left_out_by_name_it_is_reported_and_the_run_goes_on(verl: Path, tmp_path: Path) -> None:
    change(verl, *NEW_PARAMETER)
    log = tmp_path / "trace.jsonl"
    names = "attention_utils, teleport"
    env = {"VERL_XPU_SHIM_DISABLE": names, "VERL_XPU_SHIM_TRACE": str(log)}
    done = run(verl, "import verl.utils.attention_utils", **env)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in log.read_text().splitlines()]
    assert [e["detail"] for e in events if e.get("capability") == "attention_utils"] == ["disabled"]
    (warning,) = [line for line in done.stderr.splitlines() if "VERL_XPU_SHIM_DISABLE" in line]
    assert "teleport" in warning.partition("the names are")[0]
    assert "attention_utils, attention_default, reduce_avg" in warning.partition("the names are")[2]


@pytest.mark.parametrize("strict", [False, True])
def test_an_optional_capability_is_reported_and_stops_only_the_strict(verl: Path, strict: bool) -> None:
    change(verl, *NEW_MARKER)
    env = {"VERL_XPU_SHIM_STRICT": "1"} if strict else {}
    done = run(verl, "import verl.utils.profiler.profile; print('WENT ON')", **env)
    assert "the optional capability 'profiler_markers'" in done.stderr
    assert ("WENT ON" in done.stdout) is not strict
    assert done.returncode == int(strict)


def test_without_xpu_a_drift_is_nobodys_business(verl: Path) -> None:
    for drift in (NEW_PARAMETER, NEW_MARKER):
        change(verl, *drift)
    code = "import verl.utils.attention_utils, verl.utils.profiler.profile; print('WENT ON')"
    with_shim, without = run(verl, code, emulated=False), run(verl, code, emulated=False, VERL_XPU_SHIM="0")
    assert with_shim.stdout == "WENT ON\n" == without.stdout
    assert "verl-xpu-shim" not in with_shim.stderr


def test_a_patch_that_fails_half_way_leaves_nothing_behind(verl: Path) -> None:
    done = run(
        verl,
        """
import sys, types
from verl_xpu_shim import policy
from verl_xpu_shim.capability import Capability, Target, load
import verl_xpu_shim.patches.platform as subject
def patch(module, edit):
    edit.replace(module, "first", "new")
    edit.replace(module, "added", 1)
    raise KeyError("half way")
module = types.ModuleType("verl.half"); module.first = "old"
subject.CAPABILITY = Capability("platform", True, "", (Target("verl.half", patch),)); load.cache_clear()
import torch
try:
    policy.apply("platform", module)
except RuntimeError as error:
    print(type(error.__cause__).__name__, error)
assert module.first == "old" and not hasattr(module, "added")
assert policy.outcomes["platform", "verl.half"].event == "failed"
""",
    )
    assert done.returncode == 0, done.stderr
    assert "KeyError verl-xpu-shim can't install the required capability 'platform' on verl.half" in done.stdout
    assert "half way" in done.stdout


def test_the_public_table_and_audit_tell_this_processs_state(verl: Path) -> None:
    done = run(
        verl,
        """
import verl.utils.attention_utils, verl_xpu_shim
table = verl_xpu_shim.capabilities()
assert table["attention_utils"]["state"] == {"verl.utils.attention_utils": "applied"}, table
assert table["attention_utils"]["kind"] == "required" and table["numa_affinity"]["kind"] == "optional"
assert verl_xpu_shim.audit() == []
import sys, types
holder = sys.modules["holder"] = types.ModuleType("holder")
holder.held = verl.utils.attention_utils._get_attention_functions.__wrapped__
(stale,) = verl_xpu_shim.audit()
assert (stale.module, stale.attribute, stale.capability) == ("holder", "held", "attention_utils")
assert verl_xpu_shim.capabilities() == table  # still functions, not the modules behind them
""",
    )
    assert done.returncode == 0, done.stderr


def test_an_audit_at_exit_traces_who_holds_an_original(verl: Path, tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    code = (
        "import verl.utils.attention_utils as utils, sys, types;"
        "holder = sys.modules['holder'] = types.ModuleType('holder');"
        "holder.held = utils._get_attention_functions.__wrapped__"
    )
    done = run(verl, code, VERL_XPU_SHIM_AUDIT="1", VERL_XPU_SHIM_TRACE=str(log))
    assert done.returncode == 0, done.stderr
    stale = [event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "stale"]
    assert [(e["module"], e["detail"], e["capability"]) for e in stale] == [("holder", "held", "attention_utils")]


def test_an_audit_doesn_t_need_an_exit(verl: Path, tmp_path: Path) -> None:
    """Ray ends its workers without one."""
    log = tmp_path / "trace.jsonl"
    code = (
        "from verl_xpu_shim import stale; stale.SECONDS = 0.1;"
        "import verl.utils.attention_utils as utils, os, time; held = utils._get_attention_functions.__wrapped__;"
        "time.sleep(1); os._exit(0)"
    )
    assert run(verl, code, VERL_XPU_SHIM_AUDIT="1", VERL_XPU_SHIM_TRACE=str(log)).returncode == 0
    stale = [event for event in map(json.loads, log.read_text().splitlines()) if event["event"] == "stale"]
    assert ("__main__", "held") in [(event["module"], event["detail"]) for event in stale]


def test_a_process_without_torch_asks_the_file(verl: Path) -> None:
    """The emulated build is one only once its torch is loaded; the file of this CPU build says no."""
    code = "import sys; from verl_xpu_shim import policy; print(policy.is_xpu_host(), 'torch' in sys.modules)"
    assert run(verl, code).stdout == "False False\n"
    (verl / "torch").mkdir()
    (verl / "torch" / "__init__.py").touch()
    (verl / "torch" / "version.py").write_text("from typing import Optional\nxpu: Optional[str] = '20250301'\n")
    assert run(verl, code, emulated=False).stdout == "True False\n"
