"""Whole models through vLLM's own loader, from real checkpoints: what is hosted, what stays, what is an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import load_file
from vllm.config import LoRAConfig
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers import vocab_parallel_embedding as stock
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader import utils
from vllm.model_executor.models import nemotron
from vllm.model_executor.models.utils import PPMissingLayer

from verl_xpu_shim.vllm import selection

pytestmark = pytest.mark.usefixtures("config")
TARGET = SimpleNamespace(runner_type="generate")
NAME = "model.embed_tokens.weight"


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Any]:
    def load(change: Callable[[Any], None] = lambda config: None, cls: Any = None, **kind: Any) -> Any:
        folder = tiny.checkpoint(tmp_path / "model", **kind)
        # float32: on a CPU with AMX, vLLM packs other weights with its compiled library, which isn't here.
        arguments = EngineArgs(model=str(folder), skip_tokenizer_init=True, dtype="float32", max_model_len=64)
        config = arguments.create_engine_config()
        change(config)
        with set_current_vllm_config(config):
            if cls is not None:  # built, not loaded
                return utils.initialize_model(config, model_class=cls)
            return get_model(vllm_config=config)

    return load


@pytest.fixture
def said() -> Iterator[list[str]]:
    """The lines of the capability's log, which go where vLLM's go."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("vllm.host_embedding")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield lines
    log.removeHandler(handler)


def test_an_untied_model_is_hosted_and_loaded(load: Callable[..., Any], said: list[str], tmp_path: Path) -> None:
    model = load()
    embedding = model.model.embed_tokens
    wanted = load_file(tmp_path / "model" / "model.safetensors")[NAME].float()
    assert embedding.host_table is not None
    assert torch.equal(embedding.weight[: len(wanted)], wanted)
    assert torch.equal(model.embed_input_ids(torch.tensor([0, 319])), wanted[[0, 319]])
    assert type(model.lm_head) is stock.ParallelLMHead
    [line] = said
    assert line == "Embedding table model.embed_tokens (0.000 GiB, 81920 bytes) is in host memory: 81920 bytes held."


def test_an_update_of_the_weights_lands_in_the_same_table(load: Callable[..., Any], tmp_path: Path) -> None:
    model = load()
    embedding = model.model.embed_tokens
    address, ids = embedding.weight.data_ptr(), torch.arange(320)
    compiled = torch.compile(embedding, fullgraph=True, dynamic=False)
    compiled(ids)
    fresh = load_file(tiny.checkpoint(tmp_path / "fresh", seed=11) / "model.safetensors")
    model.load_weights(fresh.items())  # as verl does it at every step
    assert embedding.weight.data_ptr() == address
    assert torch.equal(compiled(ids), fresh[NAME].float())


def test_a_tied_model_is_refused(load: Callable[..., Any], said: list[str]) -> None:
    with pytest.raises(RuntimeError, match=r"VLLM_HOST_EMBED_TABLE=1, but no embedding table .*: tied"):
        load(tied=True)
    [line] = said
    assert "stays on the device: tied" in line
    assert "81920 bytes" in line


def test_a_model_that_ties_against_its_config_is_found(load: Callable[..., Any]) -> None:
    built = []

    class Ties(nemotron.NemotronForCausalLM):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.lm_head.weight = self.model.embed_tokens.weight
            built.append(self)

    with pytest.raises(RuntimeError, match="tied: lm_head has the same weight"):
        load(cls=Ties)
    embedding = built[0].model.embed_tokens
    assert embedding.host_table is None
    assert type(embedding.quant_method) is stock.UnquantizedEmbeddingMethod
    assert built[0].lm_head.weight is embedding.weight


def test_a_head_that_is_the_embedding_is_found(load: Callable[..., Any]) -> None:
    class Aliases(nemotron.NemotronForCausalLM):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.lm_head = self.model.embed_tokens

    with pytest.raises(RuntimeError, match="tied: it is also"):
        load(cls=Aliases)


def test_a_model_that_vllm_may_tie_again_is_refused(load: Callable[..., Any]) -> None:
    def untied_by_checkpoint(config: Any) -> None:
        config.model_config.word_embeddings_untied_by_checkpoint = True

    with pytest.raises(RuntimeError, match="may tie the output head"):
        load(untied_by_checkpoint)


@pytest.mark.parametrize(("targets", "hosted"), [(None, False), (["embed_tokens"], False), (["q_proj"], True)])
def test_a_lora_target_stays(load: Callable[..., Any], targets: list[str] | None, hosted: bool) -> None:
    def lora(config: Any) -> None:
        config.lora_config = LoRAConfig(target_modules=targets, lora_dtype=torch.float32)

    if hosted:
        assert load(lora).model.embed_tokens.host_table is not None
    else:
        with pytest.raises(RuntimeError, match="a LoRA target"):
            load(lora)


def test_a_model_that_reads_the_weight_stays(load: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "READS_THE_WEIGHT", ("vllm.model_executor.models.nemotron",))
    with pytest.raises(RuntimeError, match="reads the weight other than through the lookup"):
        load()


def test_every_model_on_the_list_exists() -> None:
    import importlib.util

    root = Path(importlib.util.find_spec("vllm").origin).parents[1]  # type: ignore[union-attr, arg-type]
    newer_than_this = {"vllm.models.kimi_k3.nvidia"}
    missing = {
        name for name in selection.READS_THE_WEIGHT if not list(root.glob(f"{name.replace('.', '/')}*"))
    } - newer_than_this
    assert not missing


def test_a_second_table_that_must_stay_is_only_told(load: Callable[..., Any], said: list[str]) -> None:
    class Scaled(stock.VocabParallelEmbedding):
        """A class of the model's own, as some models have."""

    class Two(nemotron.NemotronForCausalLM):
        def __init__(self, *, vllm_config: Any, prefix: str = "") -> None:
            super().__init__(vllm_config=vllm_config, prefix=prefix)
            self.more = Scaled(64, 8)

    load(cls=Two)
    assert any("model.embed_tokens" in line and "in host memory" in line for line in said)
    assert any("more" in line and "stays on the device" in line and "own" in line for line in said)


def test_a_pipeline_stage_without_a_table_is_no_error(config: Any, said: list[str]) -> None:
    stage = torch.nn.Sequential(PPMissingLayer(), torch.nn.Linear(2, 2))
    selection.settle(stage, config, TARGET)
    assert said == ["No embedding table on this pipeline stage: nothing to keep in host memory."]


def test_a_model_without_any_table_is_an_error(config: Any) -> None:
    with pytest.raises(RuntimeError, match="Linear has no VocabParallelEmbedding"):
        selection.settle(torch.nn.Linear(2, 2), config, TARGET)


def test_a_draft_model_may_have_none(current: Any, said: list[str]) -> None:
    draft = torch.nn.ModuleDict({"embed_tokens": stock.VocabParallelEmbedding(64, 8), "lm_head": torch.nn.Identity()})
    draft.lm_head.weight = draft.embed_tokens.weight
    selection.settle(draft, current, SimpleNamespace(runner_type="draft"))
    assert draft.embed_tokens.host_table is None
    [line] = said
    assert "stays on the device: tied: lm_head has the same weight" in line
