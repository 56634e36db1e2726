"""``attention_default``: no ``flash_attention_2`` where flash-attn cannot exist, no silently wrong Ulysses.

verl asks transformers for ``flash_attention_2`` unless the user names an attention, and for value models always. On
XPU that is an ImportError. The language model's default becomes ``sdpa``; a value model gets what its config says, so
the user's choice or the same default. Can go once verl asks the platform for its default.

Ulysses (``ulysses_sequence_parallel_size`` > 1) exchanges heads for tokens inside flash-attn's forward only. With any
other attention each rank attends to its own slice of the sequence, and nothing says so: refused.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import FunctionType
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Constant
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.contract import replace_constant

FLASH: Final = "flash_attention_2"
SDPA: Final = "sdpa"


def _default_to_sdpa(module: ModuleType, edit: Edit) -> None:
    edit.constant(module.HFModelConfig.__post_init__, FLASH, SDPA)


def _as_configured(original: FunctionType) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def load_valuehead_model(*args: Any, **kwargs: Any) -> Any:
        config = signature.bind(*args, **kwargs).arguments["model_config"]
        # None would not do: transformers takes it for "choose again", whatever the config says.
        attention = getattr(config, "_attn_implementation", None) or SDPA
        code = replace_constant(original.__code__, FLASH, attention)
        return FunctionType(code, original.__globals__, original.__name__)(*args, **kwargs)

    return load_valuehead_model


def _value_model_from_config(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "load_valuehead_model", _as_configured)


def _refuse_ulysses(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def apply_monkey_patch(*args: Any, **kwargs: Any) -> Any:
        asked = signature.bind(*args, **kwargs)
        asked.apply_defaults()
        size = asked.arguments["ulysses_sp_size"]
        attention = getattr(asked.arguments["model"].config, "_attn_implementation", None)
        if size > 1 and "flash" not in str(attention):
            raise ValueError(
                f"ulysses_sequence_parallel_size={size} with attn_implementation={attention!r} would train on wrong "
                "attention without a word: verl exchanges the sequence between ranks inside flash-attn's forward only, "
                "and flash-attn doesn't exist on XPU. Set ulysses_sequence_parallel_size=1."
            )
        return original(*args, **kwargs)

    return apply_monkey_patch


def _guard_ulysses(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "apply_monkey_patch", _refuse_ulysses)


CAPABILITY: Final = Capability(
    name="attention_default",
    required=True,
    summary="no `flash_attention_2` default where flash-attn cannot exist; refuses Ulysses with another attention",
    targets=(
        Target("verl.workers.config.model", _default_to_sdpa, (Constant("HFModelConfig.__post_init__", FLASH),)),
        Target(
            "verl.utils.model",
            _value_model_from_config,
            (
                Constant("load_valuehead_model", FLASH),
                Parameters("load_valuehead_model", ("model_config",), at_least=True),
            ),
        ),
        Target(
            "verl.models.transformers.monkey_patch",
            _guard_ulysses,
            (Parameters("apply_monkey_patch", ("model", "ulysses_sp_size"), at_least=True),),
        ),
    ),
)
