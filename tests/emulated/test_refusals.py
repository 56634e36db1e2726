"""What is refused where it is configured: real verl on an emulated device."""

from __future__ import annotations

import pytest

from .child import run

FUSED = """
import json
from verl.workers.config.model import HFModelConfig
try:
    HFModelConfig(path="/nowhere", use_fused_kernels=True, fused_kernel_options={"impl_backend": "BACKEND"})
except Exception as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""

TRANSFER = """
import json
from verl.workers.config.rollout import CheckpointEngineConfig
try:
    print(json.dumps(CheckpointEngineConfig(backend="BACKEND").backend))
except ValueError as error:
    print(json.dumps(f"{type(error).__name__}: {error}"))
"""


def test_fused_triton_kernels_are_refused_by_the_name_of_the_option() -> None:
    said = run(FUSED.replace("BACKEND", "triton"))
    assert said.startswith("ValueError: model.fused_kernel_options.impl_backend=triton")
    assert "impl_backend=torch" in said
    assert "impl_backend" not in run(FUSED.replace("BACKEND", "torch"))  # it fails for the path then


@pytest.mark.parametrize("backend", ["nccl", "nixl", "delta_sharded", "kimi_ckpt_engine", "mooncake"])
def test_weight_transfer_through_cuda_is_refused_by_the_name_of_the_option(backend: str) -> None:
    said = run(TRANSFER.replace("BACKEND", backend))
    assert said.startswith(f"ValueError: rollout.checkpoint_engine.backend={backend}")
    assert "backend=naive" in said


@pytest.mark.parametrize("backend", ["naive", "one_of_my_own"])
def test_other_weight_transfer_is_left_alone(backend: str) -> None:
    assert run(TRANSFER.replace("BACKEND", backend)) == backend


def test_every_engine_of_verl_is_known() -> None:
    """A new one has to be looked at: does it allocate on CUDA?"""
    import re
    from importlib.metadata import files

    from verl_xpu_shim.platform.refusals import CUDA_BACKENDS

    sources = [file for file in files("verl") or () if re.search(r"^verl/checkpoint_engine/\w+\.py$", str(file))]
    named = {name for file in sources for name in re.findall(r'Registry\.register\("(\w+)"\)', file.read_text())}
    assert named == {"naive", *CUDA_BACKENDS}
