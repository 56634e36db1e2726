"""The version matrix: vLLM's releases beside the one that is installed, from the Python files of their wheels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_xpu_shim import status
from wheels import sources

HERE = Path(__file__).parent
RELEASES = ("0.24.0", "0.30.0", "0.33.0")


@pytest.mark.parametrize("release", RELEASES)
def test_no_contract_drifts(release: str) -> None:
    rows = [row for row in status.check(sources(f"vllm=={release}")) if row["capability"] == "host_embedding"]
    assert [row for row in rows if row["verdict"] == "drift"] == []
    absent = {row["module"] for row in rows if row["verdict"] == "absent"}
    other = "vocal" if release != "0.24.0" else "vocab"
    assert absent == {f"vllm.lora.layers.{other}_parallel_embedding"}


@pytest.mark.parametrize("release", [release for release in RELEASES if release != "0.30.0"])
def test_the_layer_behaves_alike(release: str) -> None:
    """Every test of the layer, in a process that imports that release's files."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE / "test_layer.py")]
    env = {**os.environ, "PYTHONPATH": str(sources(f"vllm=={release}")), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
