"""Tests against stock vLLM on CPU, in the environment of scripts/vllm_env.sh; elsewhere there is nothing here."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ |= {"VLLM_HOST_EMBED_TABLE": "1", "VLLM_NO_USAGE_STATS": "1"}

if importlib.util.find_spec("vllm") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import cpu as cpu


@pytest.fixture(scope="session")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A VllmConfig without a model, and vLLM's process groups of one rank, over gloo."""
    from vllm.config import VllmConfig
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state

    meeting = tmp_path_factory.mktemp("gloo") / "store"
    config = VllmConfig()
    with set_current_vllm_config(config):
        parallel_state.init_distributed_environment(1, 0, f"file://{meeting}", 0, "gloo")
        parallel_state.ensure_model_parallel_initialized(1, 1)
    yield config
    parallel_state.destroy_model_parallel()
    parallel_state.destroy_distributed_environment()


@pytest.fixture
def current(config: Any) -> Iterator[Any]:
    from vllm.config import set_current_vllm_config

    with set_current_vllm_config(config):
        yield config
