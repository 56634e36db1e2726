"""The layer on one rank: bytes, masking, addresses, reloads, what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from vllm.config import LoRAConfig
from vllm.lora.layers import VocabParallelEmbeddingWithLoRA
from vllm.model_executor.layers import vocab_parallel_embedding as stock
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.model_executor.model_loader.reload import initialize_layerwise_reload
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.models import llama

from verl_xpu_shim.probes import replay_sentinel as sentinel
from verl_xpu_shim.vllm import host_memory
from verl_xpu_shim.vllm import selection

pytestmark = pytest.mark.usefixtures("current")

BASE, MUTATED, ZEROS = (sentinel.EXPECTED[name] for name in ("base", "mutated", "zeros"))
IDS = torch.tensor(sentinel.IDS)
NO_MODEL = SimpleNamespace(word_embeddings_untied_by_checkpoint=False, dtype=torch.bfloat16, quantization=None)


def table(mutated: bool = False) -> torch.Tensor:
    return torch.from_numpy(sentinel.table_bits(mutated).view("<i2")).view(torch.bfloat16)


def build(make: Any = None, rows: torch.Tensor | None = None) -> Any:
    layer = (make or stock.VocabParallelEmbedding)(sentinel.VOCABULARY, sentinel.HIDDEN, params_dtype=torch.bfloat16)
    layer.weight_loader(layer.weight, table() if rows is None else rows)
    return layer


def digest(tensor: torch.Tensor) -> str:
    return sentinel.sha256(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def test_every_name_of_the_class_makes_the_host_layer() -> None:
    captured = llama.VocabParallelEmbedding  # taken by value when llama was imported
    layer = build(captured)
    assert isinstance(layer, stock.PinnedHostVocabParallelEmbedding)
    assert layer.host_table is not None
    assert isinstance(layer, stock.VocabParallelEmbedding)


def test_what_the_embedding_module_exports() -> None:
    from vllm.utils.torch_utils import PIN_MEMORY

    assert stock.PIN_MEMORY is PIN_MEMORY
    layer = build(stock.PinnedHostVocabParallelEmbedding)
    assert layer.accelerator_weight_view is None  # a CPU platform has no other address for it
    assert layer._uva_weight.data_ptr() == layer._lookup_weight(IDS).data_ptr() == layer.weight.data_ptr()


def test_bytes_eager_and_compiled() -> None:
    layer = build()
    assert digest(layer(IDS)) == BASE
    compiled = torch.compile(layer, fullgraph=True, dynamic=False)
    assert digest(compiled(IDS)) == BASE
    layer.weight.data.copy_(table(mutated=True))  # the compiled function goes on reading the live table
    assert digest(compiled(IDS)) == MUTATED


def test_ids_outside_every_shard_give_zero_rows() -> None:
    layer = build()
    outside = torch.tensor([sentinel.NOWHERE, -1, sentinel.VOCABULARY, 2**31 - 1, sentinel.NOWHERE, -5, 5000, 9999])
    assert digest(layer(outside)) == ZEROS
    assert digest(torch.compile(layer, fullgraph=True, dynamic=False)(outside)) == ZEROS
    mixed = layer(torch.tensor([[1, sentinel.NOWHERE], [4095, 4096]], dtype=torch.int32))
    assert mixed.shape == (2, 2, sentinel.HIDDEN)
    assert torch.equal(mixed[:, 0], table()[[1, 4095]])
    assert not mixed[:, 1].any()


class _Devices(TorchDispatchMode):
    """The devices of every tensor that an operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.seen |= {each.device.type for each in torch.utils._pytree.tree_leaves(result) if torch.is_tensor(each)}
        return result


def test_no_device_memory_in_construction_and_loading() -> None:
    # The device that isn't here is `meta`: whatever were allocated on the default device would show up there.
    with torch.device("meta"), _Devices() as devices:
        layer = build()
    assert devices.seen == {"cpu"}
    with torch.device("meta"), _Devices() as devices:
        build(lambda *args, **kwargs: _as_stock(*args, **kwargs), table().to("meta"))
    assert "meta" in devices.seen  # it is what the stock layer does
    assert digest(layer(IDS)) == BASE


def _as_stock(*args: Any, **kwargs: Any) -> Any:
    layer = torch.nn.Module.__new__(stock.VocabParallelEmbedding)
    stock.VocabParallelEmbedding.__init__(layer, *args, **kwargs)
    return layer


def test_it_allocates_exactly_the_shard() -> None:
    held = build().host_table.held
    assert held == sentinel.VOCABULARY * sentinel.HIDDEN * 2


def test_the_table_is_no_buffer() -> None:
    layer = build()
    assert dict(layer.named_buffers()) == {}  # level-2 sleep saves those, and puts old rows back
    assert list(layer.state_dict()) == ["weight"]


def test_processing_after_loading_leaves_the_weight_in_place() -> None:
    # What verl runs at every step. The target `meta` stands for the device: a stock layer's weight is moved to it.
    layer = build()
    address = layer.weight.data_ptr()
    with _Devices() as devices:
        process_weights_after_loading(torch.nn.Sequential(layer), NO_MODEL, torch.device("meta"))
    assert devices.seen <= {"cpu"}
    assert layer.weight.data_ptr() == address
    with pytest.raises(RuntimeError, match="incompatible tensor type"):
        process_weights_after_loading(torch.nn.Sequential(_as_stock(64, 8)), NO_MODEL, torch.device("meta"))


def test_a_rebound_weight_comes_back_to_the_table() -> None:
    layer = build()
    compiled = torch.compile(layer, fullgraph=True, dynamic=False)
    assert digest(compiled(IDS)) == BASE
    address = layer.weight.data_ptr()
    layer.weight.data = table(mutated=True).clone()
    assert layer.weight.data_ptr() != address
    process_weights_after_loading(torch.nn.Sequential(layer), NO_MODEL, torch.device("cpu"))
    assert layer.weight.data_ptr() == address
    assert digest(layer(IDS)) == digest(compiled(IDS)) == MUTATED
    assert layer.weight.weight_loader.__func__ is stock.PinnedHostVocabParallelEmbedding.weight_loader


def test_layerwise_reload_keeps_the_address_and_the_device_free() -> None:
    model = torch.nn.Sequential(build())
    address = model[0].weight.data_ptr()
    with torch.device("meta"):
        record_metadata_for_reloading(model)
    selection.keep_reloads_on_host(model)
    initialize_layerwise_reload(model)
    weight = model[0].weight
    weight.weight_loader(weight, table(mutated=True))
    finalize_layerwise_reload(model, NO_MODEL)
    assert model[0].weight.data_ptr() == address
    assert digest(model[0](IDS)) == MUTATED


def test_lora_wraps_it_and_adds_to_its_rows() -> None:
    layer = build()
    assert VocabParallelEmbeddingWithLoRA.can_replace_layer(layer, LoRAConfig(), [], None)
    wrapped = VocabParallelEmbeddingWithLoRA(layer)
    lora = LoRAConfig(max_lora_rank=8, lora_dtype=torch.bfloat16)
    wrapped.create_lora_weights(1, lora)
    assert wrapped.lora_a_stacked.shape == (1, sentinel.VOCABULARY, 8)
    assert wrapped.weight is layer.weight


def test_lora_weights_go_where_the_lookup_is() -> None:
    # The device is `meta`: no kernel runs, only where things are allocated matters.
    layer = build()
    layer.accelerator_weight_view = layer.weight.data.to("meta")
    wrapped = VocabParallelEmbeddingWithLoRA(layer)
    wrapped.create_lora_weights(1, LoRAConfig(max_lora_rank=8, lora_dtype=torch.bfloat16))
    devices = {each.device.type for each in (wrapped.lora_a_stacked, wrapped.lora_b_stacked, wrapped.lora_a_stacked_2d)}
    assert devices == {"meta"}


class _Quantised(stock.UnquantizedEmbeddingMethod):
    pass


class _Config(QuantizationConfig):
    get_name = get_supported_act_dtypes = get_min_capability = get_config_filenames = from_config = lambda *_: None

    def get_quant_method(self, layer: torch.nn.Module, prefix: str) -> Any:
        return _Quantised()


def test_a_quantised_table_is_left_to_its_method() -> None:
    layer = stock.VocabParallelEmbedding(64, 8, quant_config=_Config())
    assert type(layer.quant_method) is _Quantised
    assert layer.host_table is None
    assert selection._reason_of(layer) == "quantised (_Quantised)"


def test_the_head_stays_stock_and_may_not_be_this_table() -> None:
    head = stock.ParallelLMHead(64, 8)
    assert type(head) is stock.ParallelLMHead
    layer = build()
    with pytest.raises(RuntimeError, match="output head"):
        layer.quant_method.apply(layer, torch.zeros(1, sentinel.HIDDEN))


class TestLiveCheck:
    """A detached view is found out. There is no accelerator here: `synchronize` is the one thing that stands in."""

    @pytest.fixture(autouse=True)
    def no_accelerator(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.accelerator, "synchronize", lambda: None)

    def test_a_live_view_passes_and_nothing_changes(self) -> None:
        rows = table()
        host_memory.HostTable(rows, rows.view_as(rows), rows.nbytes).check_live()
        assert torch.equal(rows, table())

    def test_a_copy_is_refused(self) -> None:
        rows = table()
        with pytest.raises(RuntimeError, match="not live"):
            host_memory.HostTable(rows, rows.clone(), rows.nbytes).check_live()
        assert torch.equal(rows, table())

    def test_it_runs_at_every_reload(self) -> None:
        layer = build()
        layer.adopt(host_memory.HostTable(layer.weight.data, layer.weight.data.clone(), layer.weight.nbytes))
        with pytest.raises(RuntimeError, match="not live"):
            process_weights_after_loading(torch.nn.Sequential(layer), NO_MODEL, torch.device("cpu"))


class TestAllocation:
    """Where memory can't be pinned, nothing is built. The platform stands in: there is no accelerator here."""

    @staticmethod
    def platform(**facts: bool) -> Any:
        names = {"is_cpu": False, "is_cuda_alike": False, "is_xpu": False} | facts
        return SimpleNamespace(device_name="pretend", **{name: (lambda v=v: v) for name, v in names.items()})

    def test_no_pinned_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_memory, "current_platform", self.platform(is_xpu=True))
        with pytest.raises(RuntimeError, match="no pinned memory"):
            stock.PinnedHostVocabParallelEmbedding(64, 8)

    def test_no_view(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_memory, "current_platform", self.platform())
        with pytest.raises(RuntimeError, match="no device-mapped view"):
            stock.PinnedHostVocabParallelEmbedding(64, 8)

    def test_memory_that_is_not_pinned(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(host_memory, "current_platform", self.platform(is_xpu=True))
        monkeypatch.setattr(host_memory, "is_pin_memory_available", lambda: True)
        monkeypatch.setattr(host_memory, "_pinned", lambda shape, dtype: (torch.zeros(shape, dtype=dtype), 0))
        with pytest.raises(RuntimeError, match="not pinned"):
            stock.PinnedHostVocabParallelEmbedding(64, 8)

    def test_a_registration_lives_as_long_as_the_storage(self) -> None:
        import gc
        import mmap

        gone = []
        memory = host_memory._RegisteredMap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory._unregister = lambda: gone.append(1)
        tensor = torch.frombuffer(memory, dtype=torch.bfloat16).view(2, -1)
        del memory
        other = tensor[1:].detach()  # another Python tensor over the same storage
        del tensor
        gc.collect()
        assert not gone
        del other
        gc.collect()
        assert gone == [1]
