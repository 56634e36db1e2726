"""Which embedding tables go to the host when stock vLLM builds a model, and the report on each of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from typing import Final

import torch
import vllm.envs as envs
from vllm.config import ModelConfig
from vllm.config import VllmConfig
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.platforms import current_platform
from vllm.utils.platform_utils import is_pin_memory_available

from verl_xpu_shim.vllm.embedding import PinnedHostVocabParallelEmbedding

_log: Final = logging.getLogger("vllm.host_embedding")

#: Models whose own code reads the table other than through the lookup, by the module that does: a CPU weight breaks it.
READS_THE_WEIGHT: Final = (
    "vllm.model_executor.models.diffusion_gemma",
    "vllm.model_executor.models.gemma3n_mm",
    "vllm.models.deepseek_v32.nvidia",
    "vllm.models.dots3_note.nvidia",
    "vllm.models.inkling",
    "vllm.models.kimi_k3.nvidia",
)


class SelectiveHostVocabParallelEmbedding(PinnedHostVocabParallelEmbedding):
    """What ``VocabParallelEmbedding(...)`` makes with ``VLLM_HOST_EMBED_TABLE=1``.

    A stock layer where the configuration says that the table must stay on the device.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # nn.Module takes no attributes before its own constructor has run, and the weight is made inside that one.
        self.__dict__["stays"] = _reason_in_config(get_current_vllm_config_or_none())
        super().__init__(*args, **kwargs)


def _reason_in_config(config: VllmConfig | None) -> str | None:
    if not current_platform.is_cpu():
        if not is_pin_memory_available():
            return "vLLM reports no pinned memory on this machine"
        if envs.VLLM_WEIGHT_OFFLOADING_DISABLE_UVA or envs.VLLM_WEIGHT_OFFLOADING_DISABLE_PIN_MEMORY:
            return "VLLM_WEIGHT_OFFLOADING_DISABLE_UVA or _DISABLE_PIN_MEMORY is set"
    model = getattr(config, "model_config", None)
    if model is None:
        return None
    if any(getattr(each, "tie_word_embeddings", False) for each in (model.hf_config, model.hf_text_config)):
        return "tied: the model's config says that the output head is this table, and every step reads all of it"
    if getattr(model, "word_embeddings_untied_by_checkpoint", False):  # vLLM 0.30
        return "tied: vLLM may tie the output head to this table again after loading"
    if config is not None and config.load_config.load_format == "ipc_cache":  # vLLM 0.30
        return "load_format=ipc_cache maps the weights of another process, on the device"
    return None


@dataclass(frozen=True)
class _Table:
    layer: VocabParallelEmbedding
    names: tuple[str, ...]

    def __str__(self) -> str:
        weight = self.layer.weight
        return f"{self.names[0]} ({weight.nbytes / 2**30:.3f} GiB, {weight.nbytes} bytes)"


def settle(model: torch.nn.Module, config: VllmConfig, model_config: ModelConfig) -> None:
    """Say of each table of the finished ``model`` where it is, or why not, before its weights are loaded.

    Those that can't be on the host, as only the finished model shows, are moved to the device.

    Raises:
        RuntimeError: no table of the model is on the host. A draft model may have none: the target's is what counts.
    """
    tables = list(_tables(model))
    stay = []
    for table in tables:
        layer = table.layer
        hosted = isinstance(layer, PinnedHostVocabParallelEmbedding) and layer.host_table is not None
        reason = _reason_in_model(model, table, config) if hosted else _reason_of(layer)
        if reason is None:
            _log.info("Embedding table %s is in host memory: %d bytes held.", table, layer.host_table.held)
            continue
        if hosted:
            layer.move_to_device(torch.get_default_device(), reason)
        stay.append(f"{table}: {reason}")
        _log.info("Embedding table %s stays on the device: %s.", table, reason)
    if not tables and _lacks_pipeline_stage(model):
        _log.info("No embedding table on this pipeline stage: nothing to keep in host memory.")
    elif len(stay) == len(tables) and model_config.runner_type != "draft":
        raise RuntimeError(
            "VLLM_HOST_EMBED_TABLE=1, but no embedding table of this model can be kept in host memory: "
            f"{'; '.join(stay) or f'{type(model).__name__} has no VocabParallelEmbedding'}. Unset it for this model."
        )


def keep_reloads_on_host(model: torch.nn.Module) -> None:
    """Let vLLM's layerwise reload build its copy of a host table on the host, not on the device."""
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    for layer in model.modules():
        if isinstance(layer, PinnedHostVocabParallelEmbedding) and layer.host_table is not None:
            get_layerwise_info(layer).restore_device = torch.device("cpu")


def _tables(model: torch.nn.Module) -> Iterator[_Table]:
    names: dict[VocabParallelEmbedding, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, VocabParallelEmbedding) and not isinstance(module, ParallelLMHead):
            names.setdefault(module, []).append(name)
    return (_Table(layer, tuple(each)) for layer, each in names.items())


def _reason_of(layer: VocabParallelEmbedding) -> str:
    """Why ``layer``, as it was built, isn't on the host."""
    if not isinstance(layer, PinnedHostVocabParallelEmbedding):
        return f"{type(layer).__qualname__} is a class of the model's own"
    return layer.stays or f"quantised ({type(layer.quant_method).__name__})"


def _reason_in_model(model: torch.nn.Module, table: _Table, config: VllmConfig) -> str | None:
    """Why ``table`` can't stay on the host in ``model``, as only the finished model shows."""
    leaf = table.names[0].rpartition(".")[2]
    for name, module in model.named_modules():
        if module is not table.layer and any(each is table.layer.weight for each in module._parameters.values()):
            return f"tied: {name} has the same weight"
        if module.__class__.__module__.startswith(READS_THE_WEIGHT):
            return f"{type(module).__qualname__} reads the weight other than through the lookup"
        if config.lora_config is not None and leaf in (getattr(module, "embedding_modules", None) or ()):
            targets = config.lora_config.target_modules
            if targets is None or leaf in targets or not set(table.names).isdisjoint(targets):
                return "a LoRA target"
    aliases = [name for name in table.names if name.rpartition(".")[2] != leaf]
    return f"tied: it is also {', '.join(aliases)}" if aliases else None


def _lacks_pipeline_stage(model: torch.nn.Module) -> bool:
    from vllm.model_executor.models.utils import PPMissingLayer

    return any(isinstance(module, PPMissingLayer) for module in model.modules())
