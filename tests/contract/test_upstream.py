"""The contracts against released upstreams, from their files; and against the very modules, imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_xpu_shim import status
from verl_xpu_shim.capability import NAMES
from verl_xpu_shim.capability import load
from wheels import sources
from xpu_sitecustomize.watchlist import WATCHLIST

VERL = ("verl==0.9.0", "verl==0.9.1")


@pytest.mark.parametrize("release", VERL)
def test_no_contract_drifts_on_a_supported_verl(release: str) -> None:
    rows = [row for row in status.check(sources(release)) if row["module"].startswith("verl.")]
    assert {row["capability"] for row in rows if row["verdict"] == "held"} == {
        name for name in NAMES if any(target.module.startswith("verl.") for target in load(name).targets)
    }
    assert [row for row in rows if row["verdict"] == "drift"] == []


def test_no_contract_drifts_on_what_is_installed() -> None:
    assert [row for row in status.check() if row["verdict"] == "drift"] == []


def test_check_imports_nothing_of_what_it_judges() -> None:
    code = (
        "import sys; from verl_xpu_shim.cli import main; main(['check', '--json']);"
        "sys.stderr.write(' '.join(m for m in sys.modules if m.partition('.')[0] in ('torch', 'verl', 'vllm', 'ray')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert {row["verdict"] for row in json.loads(done.stdout)} <= {"held", "absent"}


def test_a_file_and_its_live_module_are_judged_alike() -> None:
    """Every target of verl and torch that can be imported here, without a device."""
    code = """
import importlib, json, sys
from verl_xpu_shim.capability import NAMES, load
from verl_xpu_shim.contract import LiveView, broken
judged = []
for target in (target for name in NAMES for target in load(name).targets):
    if target.module.partition(".")[0] in ("verl", "torch"):
        try:
            module = importlib.import_module(target.module)
        except (ImportError, ValueError):  # of an engine that isn't installed here; verl says it either way
            continue
        judged.append([target.module, broken(target.contract, LiveView(module))])
print(json.dumps(judged))
"""
    env = {**os.environ, "VERL_XPU_SHIM": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    judged = json.loads(done.stdout.splitlines()[-1])
    assert len(judged) >= 12
    assert [each for each in judged if each[1]] == []


def test_the_watchlist_is_what_the_capabilities_patch() -> None:
    patched: dict[str, list[str]] = {}
    for name in NAMES:
        for target in load(name).targets:
            patched.setdefault(target.module, []).append(name)
    assert {module: sorted(names) for module, names in WATCHLIST.items()} == {
        module: sorted(names) for module, names in patched.items()
    }


def _site_with(tmp_path: Path, module: str, source: str) -> Path:
    path = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    for folder in path.relative_to(tmp_path).parents:
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


def test_check_names_what_drifted_and_exits_with_one(tmp_path: Path) -> None:
    site = _site_with(tmp_path, "verl.utils.attention_utils", "def _get_attention_functions(device): ...\n")
    command = [sys.executable, "-m", "verl_xpu_shim", "check", "--site", str(site)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "expected _get_attention_functions(), found _get_attention_functions(device)" in done.stdout
    assert "expected the module, found verl has none" in done.stdout  # every other module of verl is gone
    assert "drifted" in done.stderr


def test_check_of_a_folder_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "verl_xpu_shim", "check", "--site", str(tmp_path / "absent")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2
