"""CPython's own import tests as a gate, for the Python that runs the tests; and the form of what the scripts write."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from venvs import ROOT
from venvs import execute

from .test_ways_in import HERE


def test_import_suite(tmp_path: Path) -> None:
    """The other versions are the script's own business: scripts/import_suite.py without arguments."""
    report = tmp_path / "report.json"
    command = (sys.executable, ROOT / "scripts/import_suite.py", "--python", HERE, "--json", report)
    done = execute(*command, cwd=tmp_path, code=None, timeout=900)
    assert done.code == 0, done.out + done.err
    bare, shim, hooked = json.loads(report.read_text())
    assert bare["pass"] == shim["pass"] == hooked["pass"] > 2000
    assert [row["differs"] for row in (bare, shim, hooked)] == [{}, {}, {}]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="no valgrind on this machine")
def test_benchmark_rows(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = (sys.executable, ROOT / "scripts/benchmark.py", "startup", "--no-rivals", "--rounds", "1")
    execute(*command, "--json", report, cwd=tmp_path, code=None)
    rows = json.loads(report.read_text())
    assert [row["name"] for row in rows][:4] == ["bare", "shim", "shim-off", "shim-no-pyc"]
    for row in rows:
        assert set(row) == {"benchmark", "name", "instructions", "instructions_over_bare", "ms_over_bare"}
        assert row["benchmark"] == "startup"
