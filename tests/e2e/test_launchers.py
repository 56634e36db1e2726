"""In the processes that Ray and torchrun start the shim loads by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torchrun

#: How the shim came in, in a process of somebody else's making.
ASK = "getattr(__import__('sys').modules.get('_xpu_sitecustomize'), 'entered', None)"


@pytest.fixture
def env() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("VERL_XPU", "RAY_"))}


def test_torchrun(tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "ask.py").write_text(f"print({ASK})")
    assert torchrun.run(2, "ask.py", env=env, cwd=tmp_path) == [["pth"], ["pth"]]
    assert torchrun.run(2, "-m", "ask", env=env, cwd=tmp_path) == [["pth"], ["pth"]]
    assert torchrun.run(2, "ask.py", env=env | {"VERL_XPU_SHIM": "0"}, cwd=tmp_path) == [["None"], ["None"]]


RAY = f"""
import os, ray, sys

def ask(*_): return {ASK}

class Actor:
    ask = ask

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
for environment in (
    {{}},
    {{"env_vars": {{"ANYTHING": "1"}}}},
    {{"env_vars": {{"VERL_XPU_SHIM": "0"}}}},
    {{"env_vars": {{"PYTHONPATH": os.getcwd()}}}},
    {{"py_executable": sys.executable + " -u"}},
    {{"py_executable": os.environ["WRAPPER"]}},
):
    task = ray.remote(ask).options(runtime_env=environment)
    actor = ray.remote(Actor).options(runtime_env=environment).remote()
    print(*ray.get([task.remote(), actor.ask.remote()]))
"""


def test_ray(tmp_path: Path, env: dict[str, str]) -> None:
    pytest.importorskip("ray")
    (tmp_path / "main.py").write_text(textwrap.dedent(RAY))
    wrapper = tmp_path / "python-of-a-wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    env |= {"RAY_USAGE_STATS_ENABLED": "0", "WRAPPER": str(wrapper)}
    command = [sys.executable, "main.py"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["pth pth", "pth pth", "None None", "pth pth", "pth pth", "pth pth"]
