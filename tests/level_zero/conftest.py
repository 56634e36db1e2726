from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from . import stub

if importlib.util.find_spec("vllm") is None:  # it has an environment of its own: scripts/vllm_env.sh
    collect_ignore = ["test_vllm_numa_bind.py"]


@pytest.fixture(scope="session")
def level_zero(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both forms of the stub driver, compiled now."""
    folder = tmp_path_factory.mktemp("level_zero")
    stub.build(folder)
    return folder


@pytest.fixture(params=list(stub.ways()))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)
