"""The build is made once, by one of those who ask for it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from . import build
from .harness import environment


def fake_compiler(folder: Path) -> Path:
    """Counts its calls and writes empty files: the real compiler is for the real build."""
    script = folder / "c++"
    script.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && echo fake && exit 0
echo . >> {folder}/calls
while [ "$1" != -o ]; do shift; done
: > "$2"
"""
    )
    script.chmod(0o755)
    return script


def test_callers_at_the_same_time_build_once(tmp_path: Path) -> None:
    env = environment(CXX=str(fake_compiler(tmp_path)), cache=str(tmp_path / "cache"))
    callers = [
        subprocess.Popen([sys.executable, build.__file__], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(4)
    ]
    outputs = [caller.communicate() for caller in callers]
    assert {out for out, _ in outputs} == {outputs[0][0]}, outputs
    assert Path(outputs[0][0].decode().strip()).is_file()
    assert (tmp_path / "calls").read_text().count(".") == len(build.UNITS) + 1  # and one call of the linker


def test_a_failure_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    env = os.environ | {"CXX": "/bin/false", "XPU_EMU_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, build.__file__], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("build.py: no C++ compiler")
    assert not list(tmp_path.rglob("*.so"))


def test_the_key_follows_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = build.key()
    assert build.key() == before
    shutil.copytree(build.CSRC, tmp_path / "csrc")
    monkeypatch.setattr(build, "CSRC", tmp_path / "csrc")
    assert build.key() == before
    with (tmp_path / "csrc/device/alias.h").open("a") as header:
        header.write("\n")
    assert build.key() != before
