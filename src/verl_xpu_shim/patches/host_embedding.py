"""``host_embedding``: token-embedding tables in pinned host memory, in stock vLLM.

A large vocabulary's table takes gigabytes of device memory, of which a step reads a few rows. vLLM's own
``--cpu-offload-params embed_tokens`` matches nothing for an embedding that is built outside the decoder stack
(https://github.com/vllm-project/vllm/issues/53931). With ``VLLM_HOST_EMBED_TABLE=1``, ``VocabParallelEmbedding(...)``
makes a layer over pinned host memory instead, by vLLM's own out-of-tree registration, which catches every name under
which a model holds the class. Serves every accelerator; without the variable only its name is made known to vLLM.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from contextlib import nullcontext
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Change
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters

VARIABLE: Final = "VLLM_HOST_EMBED_TABLE"


def asked_for() -> bool:
    """Whether this process is to keep embedding tables in host memory.

    Raises:
        ValueError: the variable is neither 0 nor 1.
    """
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ValueError(f"{VARIABLE} must be 0 or 1, not {value!r}")
    return value == "1"


def _register_variable(module: ModuleType, edit: Edit) -> None:
    """Make the variable one of vLLM's own, set or not, so that it is part of the compile-cache key, a hash of them all.

    A graph over a host view and one over a device table must not share an entry. Ray workers then get it, too.
    """
    asked_for()  # a value that says neither stops here, before anything is built on it
    known = module.environment_variables
    if VARIABLE not in known:
        known[VARIABLE] = asked_for
        change = Change(module, f"environment_variables[{VARIABLE!r}]", None, asked_for)
        edit.changed(change, functools.partial(known.pop, VARIABLE))


def _if_asked_for(patch: Callable[[ModuleType, Edit], None]) -> Callable[[ModuleType, Edit], None]:
    @functools.wraps(patch)
    def only_then(module: ModuleType, edit: Edit) -> None:
        if asked_for():
            patch(module, edit)
        else:
            edit.notes.append(f"{VARIABLE} is not 1")

    return only_then


@_if_asked_for
def _offer_class(module: ModuleType, edit: Edit) -> None:
    """Export the class beside the stock one, and have vLLM make it wherever a model asks for the stock one."""
    from vllm.model_executor.custom_op import op_registry_oot
    from vllm.utils.torch_utils import PIN_MEMORY

    from verl_xpu_shim.vllm.embedding import PinnedHostVocabParallelEmbedding
    from verl_xpu_shim.vllm.selection import SelectiveHostVocabParallelEmbedding

    name = "VocabParallelEmbedding"
    holder = op_registry_oot.get(name)
    if holder is not None and holder.__qualname__ != SelectiveHostVocabParallelEmbedding.__qualname__:
        raise RuntimeError(f"another plugin replaces {name} already, by {holder.__module__}.{holder.__qualname__}")
    edit.replace(module, "PIN_MEMORY", PIN_MEMORY)
    edit.replace(module, PinnedHostVocabParallelEmbedding.__name__, PinnedHostVocabParallelEmbedding)
    op_registry_oot[name] = SelectiveHostVocabParallelEmbedding
    change = Change(module, f"op_registry_oot[{name!r}]", holder, SelectiveHostVocabParallelEmbedding)
    edit.changed(change, functools.partial(op_registry_oot.pop, name))


@_if_asked_for
def _settle_models(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "initialize_model", _settled)
    if not hasattr(module.QuantizeMethodBase, "requires_device_loading"):  # vLLM 0.24: goes with it
        edit.wrap(module, "device_loading_context", _leaving_host_tables)


def _settled(original: Callable[..., Any]) -> Callable[..., Any]:
    building = False

    def initialize_model(vllm_config: Any, **kwargs: Any) -> Any:
        from verl_xpu_shim.vllm import selection

        nonlocal building
        if building:  # a part of a multimodal model: settled with the whole, which knows what ties it
            return original(vllm_config, **kwargs)
        building = True
        try:
            model = original(vllm_config, **kwargs)
        finally:
            building = False
        selection.settle(model, vllm_config, kwargs.get("model_config") or vllm_config.model_config)
        selection.keep_reloads_on_host(model)
        return model

    return initialize_model


def _leaving_host_tables(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original moves every CPU weight to the device and back to new memory, also in verl's update of each step."""

    def device_loading_context(module: Any, target_device: Any) -> AbstractContextManager[Any]:
        hosted = getattr(module, "host_table", None) is not None
        return nullcontext(module) if hosted else original(module, target_device)

    return device_loading_context


@_if_asked_for
def _adapters_on_device(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module.VocabParallelEmbeddingWithLoRA, "create_lora_weights", _where_the_lookup_is)


def _where_the_lookup_is(original: Callable[..., Any]) -> Callable[..., Any]:
    """The original makes the adapters on the device of the base weight, which for a host table is the CPU."""

    def create_lora_weights(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        view = getattr(self.base_layer, "accelerator_weight_view", None)
        if view is not None:
            self.lora_a_stacked = self.lora_a_stacked.to(view.device)
            self.lora_b_stacked = self.lora_b_stacked.to(view.device)
            self.lora_a_stacked_2d = self.lora_a_stacked.view(self.lora_a_stacked_2d.shape)

    return create_lora_weights


@_if_asked_for
def _launcher_for_host_pointers(module: ModuleType, edit: Edit) -> None:
    """Switch Inductor's static Triton launcher off, which rejects host memory on XPU, as vLLM does for its offloading.

    "Pointer argument doesn't reference XPU device memory". Goes with https://github.com/pytorch/pytorch/pull/188240.
    """
    original = module.XPUPlatform.check_and_update_config

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        original.__func__(cls, vllm_config)
        vllm_config.compilation_config.inductor_compile_config.setdefault("use_static_cuda_launcher", False)

    wrapper = functools.wraps(original.__func__)(check_and_update_config)
    edit.replace(module.XPUPlatform, "check_and_update_config", classmethod(wrapper))


_LORA: Final = (
    Parameters(
        "VocabParallelEmbeddingWithLoRA.create_lora_weights", ("self", "max_loras", "lora_config", "model_config")
    ),
    Mentions(
        "VocabParallelEmbeddingWithLoRA.create_lora_weights",
        ("base_layer", "lora_a_stacked", "lora_b_stacked", "lora_a_stacked_2d"),
    ),
)

CAPABILITY: Final = Capability(
    name="host_embedding",
    required=os.environ.get(VARIABLE, "") not in ("", "0"),
    summary=f"`PinnedHostVocabParallelEmbedding` in vLLM, with {VARIABLE}=1",
    targets=(
        Target(
            "vllm.envs",
            _register_variable,
            (Defines(("environment_variables",)), Mentions("compile_factors", ("environment_variables",))),
        ),
        Target(
            "vllm.model_executor.layers.vocab_parallel_embedding",
            _offer_class,
            (
                Defines(
                    ("PluggableLayer", "ParallelLMHead", "VocabParallelEmbedding", "tensor_model_parallel_all_reduce")
                ),
                Parameters(
                    "UnquantizedEmbeddingMethod.create_weights",
                    (
                        "self",
                        "layer",
                        "input_size_per_partition",
                        "output_partition_sizes",
                        "input_size",
                        "output_size",
                        "params_dtype",
                    ),
                ),
                Mentions(
                    "VocabParallelEmbedding.__init__", ("quant_method", "create_weights", "weight_loader", "tp_size")
                ),
                Mentions(
                    "VocabParallelEmbedding.forward", ("shard_indices", "get_masked_input_and_mask", "masked_fill_")
                ),
                Parameters("VocabParallelEmbedding.weight_loader", ("self", "param", "loaded_weight")),
                Parameters(
                    "get_masked_input_and_mask",
                    (
                        "input_",
                        "org_vocab_start_index",
                        "org_vocab_end_index",
                        "num_org_vocab_padding",
                        "added_vocab_start_index",
                        "added_vocab_end_index",
                    ),
                ),
            ),
        ),
        Target(
            "vllm.model_executor.model_loader.utils",
            _settle_models,
            (
                Parameters("initialize_model", ("vllm_config", "prefix", "model_class", "model_config")),
                Mentions("initialize_model", ("record_metadata_for_reloading",)),
                Parameters("device_loading_context", ("module", "target_device")),
                Mentions("process_weights_after_loading", ("device_loading_context",)),
            ),
        ),
        Target("vllm.lora.layers.vocab_parallel_embedding", _adapters_on_device, _LORA, may_be_absent=True),
        Target(
            "vllm.lora.layers.vocal_parallel_embedding", _adapters_on_device, _LORA, may_be_absent=True
        ),  # vLLM 0.24
        Target(
            "vllm.platforms.xpu",
            _launcher_for_host_pointers,
            (
                Parameters("XPUPlatform.check_and_update_config", ("cls", "vllm_config")),
                Mentions("XPUPlatform.check_and_update_config", ("compilation_config",)),
            ),
        ),
    ),
)
