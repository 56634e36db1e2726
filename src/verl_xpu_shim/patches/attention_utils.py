"""``attention_utils``: up to verl 0.9.0 the padding functions come from flash-attn or not at all.

flash-attn ships for CUDA only, so the first packed batch raises ImportError. verl's own torch versions, written for
NPUs, do the same. verl 0.9.1 falls back by itself; can go once 0.9.0 is no longer supported.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters

WRAPPERS: Final = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
_Functions = tuple[Callable[..., Any], ...]


def _with_torch_versions(original: Callable[[], _Functions]) -> Callable[[], _Functions]:
    def get_attention_functions() -> _Functions:
        try:
            return original()
        except ImportError:
            from verl.utils import npu_flash_attn_utils

            return tuple(getattr(npu_flash_attn_utils, name) for name in WRAPPERS)

    return get_attention_functions


def _patch(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "_get_attention_functions", _with_torch_versions)


CAPABILITY: Final = Capability(
    name="attention_utils",
    required=True,
    summary="the padding functions of `verl.utils.attention_utils`",
    targets=(
        Target(
            "verl.utils.attention_utils",
            _patch,
            (
                Defines(WRAPPERS),
                Parameters("_get_attention_functions", ()),
                *(Mentions(name, ("_get_attention_functions",)) for name in WRAPPERS),
            ),
        ),
    ),
)
