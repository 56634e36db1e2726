"""verl's own objects on emulated devices: platform, engines, attention. Real verl, 0.9.1 as installed and 0.9.0."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from emulated_xpu.harness import environment as emulated_environment
from wheels import installed

from .conftest import Ranks

Run = Callable[..., str]


@pytest.fixture(params=["verl==0.9.0", "verl==0.9.1"])
def on_xpu(request: pytest.FixtureRequest) -> Run:
    """Run code in a process of its own with two emulated devices and one of the supported verls."""

    def run(code: str, check: bool = True, **environment: str) -> str:
        env = emulated_environment(2, PYTHONPATH=str(installed(request.param)), **environment)
        done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stderr[-6000:]
        return done.stdout + done.stderr

    return run


def test_the_platform_is_found_and_complete(on_xpu: Run) -> None:
    on_xpu(
        """
import torch
from verl.plugin.platform import get_platform
from verl.plugin.platform.platform_manager import PlatformRegistry
import verl.utils.device as device
platform = get_platform()
assert type(platform).__abstractmethods__ == frozenset()
assert type(platform) is PlatformRegistry.get("intel")
assert (platform.device_name, platform.vendor_name) == ("xpu", "intel")
assert (device.get_device_name(), device.get_vendor()) == ("xpu", "intel")
assert device.get_nccl_backend() == "xccl"
assert platform.device_module is torch.xpu
assert platform.is_available() and platform.is_platform_available() and platform.is_platform_available(True)
assert platform.device_count() == 2
platform.set_device(1)
assert platform.current_device() == 1 == torch.xpu.current_device()
platform.synchronize(); platform.synchronize(0); platform.empty_cache()
platform.manual_seed_all(7)
first = torch.rand(3, device="xpu"); platform.manual_seed(7)
assert torch.equal(first, torch.rand(3, device="xpu"))
assert platform.get_device_capability() == (None, None)
with platform.nvtx_range("x"):
    platform.profiler_start(); platform.profiler_stop(); platform.set_allocator_settings("expandable_segments:True")
assert platform.visible_devices_envvar() == "ZE_AFFINITY_MASK"
assert platform.ray_resource_name() == "GPU" and platform.ray_resource_options(0.5) == {"num_gpus": 0.5}
assert platform.ray_noset_envvars() == ["RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"]
assert not platform.is_ipc_supported() and platform.cudart() is None
"""
    )


def test_a_platform_that_a_plugin_registered_stays(on_xpu: Run) -> None:
    """It is imported while verl is: through VERL_USE_EXTERNAL_MODULES, after the platform manager's body."""
    on_xpu(
        """
import sys, types
plugin = types.ModuleType("plugin")
exec('''
from verl.plugin.platform.platform_manager import PlatformRegistry
@PlatformRegistry.register(platform="intel")
class Plugin(PlatformRegistry.get("intel")):
    pass
''', plugin.__dict__)
from verl.plugin.platform import get_platform
import verl.plugin.platform.platform_manager as manager
manager._current_platform = None
assert type(get_platform()).__name__ == "Plugin"
"""
    )


def test_the_stock_engines_are_registered_and_what_exists_is_kept(on_xpu: Run) -> None:
    on_xpu(
        """
import verl.workers.engine.fsdp.transformer_impl as fsdp
from verl.workers.engine.base import EngineRegistry
wanted = {"language_model": fsdp.FSDPEngineWithLMHead, "value_model": fsdp.FSDPEngineWithValueHead}
for model_type, engine in wanted.items():
    for strategy in ("fsdp", "fsdp2"):
        assert EngineRegistry.get_engine_cls(model_type, strategy) is engine
try:  # a plugin that comes later is kept out by verl itself
    EngineRegistry.register("language_model", "fsdp2", device="xpu", vendor="intel")(fsdp.FSDPEngineWithLMHead)
except AssertionError as error:
    assert "already" in str(error)
else:
    raise SystemExit("registered twice")
class Mine(fsdp.FSDPEngineWithLMHead): pass
EngineRegistry._engines["language_model"]["fsdp2"]["xpu", "intel"] = Mine
import importlib
from verl_xpu_shim import policy
policy.apply("fsdp_engine", fsdp)
assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is Mine
assert policy.outcomes["fsdp_engine", fsdp.__name__].event == "skipped"
"""
    )


ENGINE = """
os.environ["LOCAL_RANK"] = os.environ["LOCAL_RANK"]
from verl.trainer.config import CheckpointConfig
from verl.workers.config import FSDPEngineConfig, FSDPOptimizerConfig, HFModelConfig
from verl.workers.engine import EngineRegistry
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
for model_type in ("language_model", "value_model"):
    for strategy in ("fsdp", "fsdp2"):
        engine = EngineRegistry.new(
            model_type=model_type,
            backend=strategy,
            model_config=HFModelConfig(path=TINY, model_type=model_type, use_remove_padding=False),
            engine_config=FSDPEngineConfig(strategy=strategy, use_torch_compile=False),
            optimizer_config=FSDPOptimizerConfig(lr=1e-3, total_training_steps=4),
            checkpoint_config=CheckpointConfig(),
        )
        engine.initialize()
        kind = FullyShardedDataParallel if strategy == "fsdp" else FSDPModule
        assert isinstance(engine.module, kind), type(engine.module)
        ids = torch.arange(8, device="xpu")[None] + rank
        losses = []
        for step in range(4):
            output = engine.module(input_ids=ids, use_cache=False).logits.float()
            if model_type == "value_model":
                assert output.shape == (1, 8, 1), output.shape
                loss = (output - 1).pow(2).mean()
            else:
                loss = torch.nn.functional.cross_entropy(output[0, :-1], ids[0, 1:])
            loss.backward()
            assert torch.isfinite(torch.tensor(engine.optimizer_step()))
            engine.optimizer_zero_grad()
            losses.append(loss.item())
        assert losses[-1] < losses[0], losses
        inner = next(m for m in engine.module.modules() if hasattr(m, "config"))
        assert inner.config._attn_implementation == "sdpa"
        print("ENGINE", model_type, strategy, type(engine).__name__)
"""


def test_both_engines_train_both_kinds_of_model(ranks: Ranks, tiny: Path) -> None:
    lines = ranks(f"import verl\nTINY = {str(tiny / 'model')!r}\n" + ENGINE, TRANSFORMERS_OFFLINE="1")
    engines = [line for line in lines if line.startswith("ENGINE")]
    assert engines[: len(engines) // 2] == engines[len(engines) // 2 :]  # both ranks
    assert sorted(set(engines)) == [
        "ENGINE language_model fsdp FSDPEngineWithLMHead",
        "ENGINE language_model fsdp2 FSDPEngineWithLMHead",
        "ENGINE value_model fsdp FSDPEngineWithValueHead",
        "ENGINE value_model fsdp2 FSDPEngineWithValueHead",
    ]


def test_padding_round_trips_without_flash_attn(on_xpu: Run) -> None:
    on_xpu(
        """
import torch
from verl.utils.attention_utils import index_first_axis, pad_input, rearrange, unpad_input
from verl.workers.utils import padding  # captures them by value
assert padding.unpad_input is unpad_input
mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]], device="xpu")
hidden = torch.randn(3, 4, 5, device="xpu", requires_grad=True)
flat, indices, offsets, longest, *_ = unpad_input(hidden, mask)
assert flat.shape == (8, 5) and longest == 4
assert offsets.tolist() == [0, 3, 4, 8]
assert torch.equal(index_first_axis(hidden.reshape(12, 5), indices), flat)
back = pad_input(flat, indices, 3, 4)
assert torch.equal(back, hidden * mask[..., None])
back.sum().backward()
assert torch.equal(hidden.grad, mask[..., None].expand(3, 4, 5).float())
try:
    assert rearrange(hidden, "b s d -> (b s) d").shape == (12, 5)
except ModuleNotFoundError as error:
    assert error.name == "einops"  # verl doesn't ask for it
extra = torch.tensor([[0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]], device="xpu")
flat, _, offsets, _, used = unpad_input(hidden, mask, extra)
assert flat.shape == (9, 5) and offsets.tolist() == [0, 4, 5, 9] and used.tolist() == [3, 1, 4]
"""
    )


def test_the_attention_default_is_sdpa_and_a_choice_is_left_alone(on_xpu: Run, tiny: Path) -> None:
    on_xpu(
        f"""
import torch
from verl.workers.config import HFModelConfig
from verl.utils.model import load_valuehead_model
path = {str(tiny / "model")!r}
for chosen, wanted in (({{}}, "sdpa"), ({{"attn_implementation": "eager"}}, "eager")):
    config = HFModelConfig(path=path, override_config=chosen)
    assert config.hf_config._attn_implementation == wanted
    assert config.override_config == chosen  # nothing of the user's is written to
    config.hf_config.num_labels = 1
    value = load_valuehead_model(path, torch.bfloat16, config.hf_config, False)
    assert value.config._attn_implementation == wanted, value.config._attn_implementation
    assert type(value).__name__ == "Qwen2ForTokenClassification"
""",
        TRANSFORMERS_OFFLINE="1",
    )


def test_without_the_capability_the_default_is_an_import_error(on_xpu: Run, tiny: Path) -> None:
    said = on_xpu(
        f"""
import torch
from verl.workers.config import HFModelConfig
from transformers import AutoModelForCausalLM
config = HFModelConfig(path={str(tiny / "model")!r})
AutoModelForCausalLM.from_pretrained(config.path, config=config.hf_config)
""",
        check=False,
        TRANSFORMERS_OFFLINE="1",
        VERL_XPU_SHIM_DISABLE="attention_default",
    )
    assert "ImportError" in said


ULYSSES = """
from transformers import Qwen2Config, Qwen2ForCausalLM
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.ulysses import set_ulysses_sequence_parallel_group, ulysses_pad_and_slice_inputs
torch.manual_seed(0)
config = Qwen2Config(vocab_size=128, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                     num_attention_heads=4, num_key_value_heads=2, initializer_range=0.5)
config._attn_implementation = "sdpa"
model = Qwen2ForCausalLM(config).to("xpu")
ids, positions = torch.randint(0, 128, (1, 32)).to("xpu"), torch.arange(32)[None].to("xpu")
with torch.no_grad():
    whole = model(input_ids=ids, position_ids=positions, use_cache=False).logits
try:
    apply_monkey_patch(model, ulysses_sp_size=2, use_remove_padding=True)
except ValueError as error:
    print("REFUSED", error)
else:
    set_ulysses_sequence_parallel_group(dist.new_group([0, 1]))
    mine, at, _ = ulysses_pad_and_slice_inputs(ids, positions, sp_size=2)
    with torch.no_grad():
        part = model(input_ids=mine, position_ids=at, use_cache=False).logits
    gap = (part - whole[:, 16 * rank : 16 * (rank + 1)]).abs().max().item() / whole.abs().max().item()
    print("GAP", rank, gap)
apply_monkey_patch(model, ulysses_sp_size=1, use_remove_padding=True)
"""


def test_ulysses_with_sdpa_is_wrong_and_refused(ranks: Ranks) -> None:
    """The second rank's tokens never attend to the first's: in float32 its logits are off by their own size."""
    lines = ranks("import verl\n" + ULYSSES, VERL_XPU_SHIM_DISABLE="attention_default")
    gaps = {line.split()[1]: float(line.split()[2]) for line in lines if line.startswith("GAP")}
    assert gaps["0"] == 0.0  # the first slice has nothing before it to miss
    assert gaps["1"] > 0.5

    lines = ranks("import verl\n" + ULYSSES)
    refused = [line for line in lines if line.startswith("REFUSED")]
    assert len(refused) == 2
    assert "ulysses_sequence_parallel_size=2 with attn_implementation='sdpa'" in refused[0]
    assert "Set ulysses_sequence_parallel_size=1" in refused[0]
