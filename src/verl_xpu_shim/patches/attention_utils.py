"""``attention_utils``: up to verl 0.9.0 the padding functions come from flash-attn or not at all.

flash-attn ships for CUDA only, so the first packed batch raises ImportError; the versions that verl has for NPUs need
einops, which verl doesn't ask for. verl 0.9.1 falls back by itself; can go once 0.9.0 is no longer supported.
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


def index_first_axis(tensor: Any, indices: Any) -> Any:
    """Return rows ``indices`` (n,) of ``tensor`` (rows, ...) as (n, ...)."""
    return tensor.index_select(0, indices)


def unpad_input(hidden_states: Any, attention_mask: Any, unused_mask: Any = None) -> tuple[Any, Any, Any, int, Any]:
    """Pack the tokens that ``attention_mask`` (batch, length), or ``unused_mask``, keeps of (batch, length, ...).

    Returns the tokens (kept, ...), their places (kept,) in the flattened batch, the offsets (batch + 1,) int32 of the
    sequences, the longest one's length, and how many tokens of each (batch,) int32 the attention mask alone keeps.
    """
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1).int()
    places = kept.flatten().nonzero().flatten()
    offsets = lengths.new_zeros(lengths.numel() + 1)
    offsets[1:] = lengths.cumsum(0)
    tokens = index_first_axis(hidden_states.flatten(0, 1), places)
    return tokens, places, offsets, int(lengths.max()), attention_mask.sum(-1).int()


def pad_input(hidden_states: Any, indices: Any, batch: int, seqlen: int) -> Any:
    """Put packed tokens (kept, ...) back to their places ``indices`` (kept,) of zeros (batch, seqlen, ...)."""
    shape = hidden_states.shape[1:]
    return (
        hidden_states.new_zeros(batch * seqlen, *shape)
        .index_copy(0, indices, hidden_states)
        .view(batch, seqlen, *shape)
    )


def rearrange(*args: Any, **kwargs: Any) -> Any:
    """``einops.rearrange``, asked for only where it is used."""
    import einops

    return einops.rearrange(*args, **kwargs)


def _with_torch_versions(original: Callable[[], _Functions]) -> Callable[[], _Functions]:
    def get_attention_functions() -> _Functions:
        try:
            return original()
        except ImportError:
            return index_first_axis, pad_input, rearrange, unpad_input

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
