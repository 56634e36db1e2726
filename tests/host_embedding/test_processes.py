"""What only a process of its own shows: two ranks, the variable set and unset, another plugin, the probe."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchrun
from verl_xpu_shim.probes import replay_sentinel as sentinel

HERE = Path(__file__).parent


def environment(host: str | None = "1", **extra: str) -> dict[str, str]:
    wanted = {"VLLM_HOST_EMBED_TABLE": host} if host is not None else {}
    return {name: value for name, value in os.environ.items() if name != "VLLM_HOST_EMBED_TABLE"} | wanted | extra


def run(*command: str, host: str | None = "1", **extra: str) -> subprocess.CompletedProcess[str]:
    env = environment(host, **extra)
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=300)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, object]]:
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_two_ranks_over_gloo() -> None:
    digests, wanted = sentinel.derive(), sentinel.EXPECTED
    for rank, printed in enumerate(torchrun.run(2, str(HERE / "tensor_parallel.py"), env=environment())):
        each = json.loads(printed[-1])
        assert each["class"] == "SelectiveHostVocabParallelEmbedding"
        assert each["rows"] == sentinel.SHARD
        assert each["eager"] == each["compiled"] == wanted["base"]
        assert each["outside"] == each["outside compiled"] == wanted["zeros"]
        assert each["mutated"] == each["mutated compiled"] == wanted["mutated"]
        assert each["partial"] == digests[f"base/rank{rank}"]


KEY = """
import json, vllm.envs, sys
from vllm.config.utils import hash_factors
factors = vllm.envs.compile_factors()
print(json.dumps({"value": factors.get("VLLM_HOST_EMBED_TABLE"), "key": hash_factors(factors), "count": len(factors),
                  "ours": "verl_xpu_shim.vllm.embedding" in sys.modules}))
"""


def test_the_variable_is_part_of_the_compile_cache_key() -> None:
    [unset], [off], [on] = (lines(run("-c", KEY, host=host)) for host in (None, "0", "1"))
    [bare] = lines(run("-c", KEY, host=None, VERL_XPU_SHIM="0"))
    assert (unset["value"], off["value"], on["value"]) == (False, False, True)
    assert unset["key"] == off["key"] != on["key"]
    assert bare["value"] is None
    assert unset["count"] == bare["count"] + 1  # type: ignore[operator]


STOCK = """
import json, sys
from vllm.model_executor.layers import vocab_parallel_embedding as module
from vllm.model_executor.model_loader import utils
from vllm.model_executor.custom_op import op_registry_oot
print(json.dumps({"exported": hasattr(module, "PinnedHostVocabParallelEmbedding"), "registered": list(op_registry_oot),
                  "loader": hasattr(utils.initialize_model, "__verl_xpu_shim__"),
                  "ours": [name for name in sys.modules if name.startswith("verl_xpu_shim.vllm")]}))
"""


@pytest.mark.parametrize("host", [None, "0"])
def test_without_the_variable_vllm_is_stock(host: str | None) -> None:
    [seen] = lines(run("-c", STOCK, host=host))
    assert seen == {"exported": False, "registered": [], "loader": False, "ours": []}


def test_a_value_that_is_neither_0_nor_1_stops_vllm() -> None:
    done = run("-c", "import vllm.envs", host="yes")
    assert done.returncode != 0
    assert "VLLM_HOST_EMBED_TABLE must be 0 or 1, not 'yes'" in done.stderr


PLUGIN = """
from vllm.model_executor.custom_op import PluggableLayer
@PluggableLayer.register_oot(name="VocabParallelEmbedding")
class Theirs(PluggableLayer): pass
import vllm.model_executor.layers.vocab_parallel_embedding
"""


def test_another_plugin_that_replaces_the_layer_is_named() -> None:
    done = run("-c", PLUGIN)
    assert done.returncode != 0
    assert "another plugin replaces VocabParallelEmbedding already, by __main__.Theirs" in done.stderr


def test_the_probe_cannot_judge_here() -> None:
    done = run("-m", "verl_xpu_shim", "probe", "replay-sentinel")
    assert (done.returncode, "start 2 ranks" in done.stderr) == (2, True)
    both = run("-m", "verl_xpu_shim", "probe", "replay-sentinel", RANK="0", WORLD_SIZE="2", LOCAL_RANK="0")
    assert both.returncode == 2
    assert "2 devices that capture" in both.stderr
    wrong = run("-m", "verl_xpu_shim", "probe", "replay-sentinel", REPLAY_SENTINEL_AR="ring")
    assert (wrong.returncode, "must be custom or nccl" in wrong.stderr) == (2, True)


XPU = """
import json, sys, types
for name in ("vllm_xpu_kernels", "vllm_xpu_kernels._C", "vllm_xpu_kernels._moe_C", "vllm_xpu_kernels._xpu_C"):
    sys.modules[name] = types.ModuleType(name)
from vllm.config import VllmConfig
from vllm.config.compilation import CompilationMode
from vllm.platforms.xpu import XPUPlatform
config = VllmConfig()
config.compilation_config.mode = CompilationMode.VLLM_COMPILE
XPUPlatform.check_and_update_config(config)
print(json.dumps(config.compilation_config.inductor_compile_config.get("use_static_cuda_launcher", "unset")))
"""


def test_on_xpu_the_launcher_that_refuses_host_memory_is_off() -> None:
    """vLLM's XPU platform without its compiled kernels, for which empty modules stand in."""
    on, off = (run("-c", XPU, host=host) for host in ("1", "0"))
    assert (on.returncode, off.returncode) == (0, 0), on.stderr[-2000:] + off.stderr[-2000:]
    assert (on.stdout.splitlines()[-1], off.stdout.splitlines()[-1]) == ("false", '"unset"')
