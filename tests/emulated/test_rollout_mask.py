"""verl's vLLM server writes a mask for its devices: absolute, whatever Ray calls them. Needs verl and vLLM."""

from __future__ import annotations

import importlib.util

import pytest

from .child import run

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None or importlib.util.find_spec("verl") is None,
    reason="needs verl and vLLM, the environment of scripts/setup.sh --rollout",
)

SERVER = """
import json, os, sys
os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
arguments = dict(config=None, model_config=None, rollout_mode=None, workers=[], replica_rank=0, node_rank=0,
                 gpus_per_node=2, nnodes=1, cuda_visible_devices=IDS)
before = os.environ.get("ZE_AFFINITY_MASK")
try:
    vLLMHttpServer(**arguments)
except Exception:
    pass  # it goes on to a configuration that isn't there, long after the mask
print(json.dumps([before, os.environ.get("ZE_AFFINITY_MASK")]))
"""


@pytest.mark.parametrize(
    ("dpctl", "outer", "ids", "mask"),
    [
        ("1", None, "2,3", "2,3"),
        ("1", "2,3", "2,3", "2,3"),
        ("1", "2,3", "3", "3"),
        ("0", "2,3", "0,1", "2,3"),
        ("0", "2,3", "1", "3"),
        ("0", None, "1", "1"),
    ],
)
def test_an_outer_mask_stays_absolute(dpctl: str, outer: str | None, ids: str, mask: str) -> None:
    environment = {"XPU_EMU_DPCTL": dpctl} | ({} if outer is None else {"ZE_AFFINITY_MASK": outer})
    assert run(SERVER.replace("IDS", repr(ids)), count=4, **environment) == [outer, mask]


def test_without_the_capability_relative_ids_replace_it() -> None:
    off = {"VERL_XPU_SHIM_DISABLE": "ray_devices", "XPU_EMU_DPCTL": "0", "ZE_AFFINITY_MASK": "2,3"}
    assert run(SERVER.replace("IDS", "'0,1'"), count=4, **off) == ["2,3", "0,1"]
