"""In the processes that Ray and torchrun start the shim loads by itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

#: How the shim came in, in a process of somebody else's making.
ASK = "getattr(__import__('sys').modules.get('_xpu_sitecustomize'), 'entered', None)"


def run(tmp_path: Path, *command: str, **environment: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("VERL_XPU", "RAY_"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=tmp_path,
        env={**env, "RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0", **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [line.partition("answer: ")[2] for line in done.stdout.splitlines() if "answer: " in line]


def test_torchrun(tmp_path: Path) -> None:
    (tmp_path / "ask.py").write_text(f"print('answer: %s\\n' % {ASK}, end='', flush=True)")
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    assert run(tmp_path, *launch, "ask.py") == ["pth", "pth"]
    assert run(tmp_path, *launch, "-m", "ask") == ["pth", "pth"]
    assert run(tmp_path, *launch, "ask.py", VERL_XPU_SHIM="0") == ["None", "None"]


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
    print("answer:", *ray.get([task.remote(), actor.ask.remote()]), flush=True)
"""


def test_ray(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (tmp_path / "main.py").write_text(textwrap.dedent(RAY))
    wrapper = tmp_path / "python-of-a-wrapper"
    wrapper.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    wrapper.chmod(0o755)
    answers = run(tmp_path, "main.py", WRAPPER=str(wrapper))
    assert answers == ["pth pth", "pth pth", "None None", "pth pth", "pth pth", "pth pth"]
