"""``fsdp2_reduce_avg``: FSDP2 and HSDP reduce gradients with AVG or PREMUL_SUM; oneCCL refuses both or gets them wrong.

AVG: intel/torch-xpu-ops#2361 (refused on the scheduler path), #3020 (divided twice before oneAPI 2026.0).
PREMUL_SUM: intel/torch-xpu-ops#1571. PyTorch can do with SUM and a division of its own, but does so for MTIA alone.
Can go with oneCCL 2022.2, or once PyTorch treats ``xpu`` as it treats ``mtia``.

The public ``set_force_sum_reduction_for_comms`` touches one module's own group and must be called for each; every
group, whenever it is made, comes through ``_get_gradient_divide_factors``.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters

_Factors = tuple[float | None, float | None, Any, Any]
PARAMETERS: Final = (
    "reduce_scatter_group",
    "all_reduce_group",
    "reduce_dtype",
    "device_type",
    "factor",
    "force_sum_reduction_for_comms",
)


def _sum_on_xpu(original: Callable[..., _Factors]) -> Callable[..., _Factors]:
    def get_gradient_divide_factors(
        reduce_scatter_group: Any,
        all_reduce_group: Any,
        reduce_dtype: Any,
        device_type: str = "",
        factor: float | None = None,
        force_sum_reduction_for_comms: bool = False,
    ) -> _Factors:
        groups = reduce_scatter_group, all_reduce_group, reduce_dtype, device_type, factor
        if device_type != "xpu" or force_sum_reduction_for_comms:
            return original(*groups, force_sum_reduction_for_comms)
        if factor is not None and (reduce_scatter_group is None or reduce_scatter_group.size() == 1):
            # Nothing is scattered then and FSDP divides by the factor itself: forced, it would divide once more.
            from torch.distributed import ReduceOp

            pre, post, _, _ = original(*groups, False)
            return pre, post, ReduceOp.SUM, ReduceOp.SUM
        return original(*groups, True)

    return get_gradient_divide_factors


def _patch(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "_get_gradient_divide_factors", _sum_on_xpu)


CAPABILITY: Final = Capability(
    name="fsdp2_reduce_avg",
    required=True,
    summary="FSDP2/HSDP gradient reduction never asks XCCL for AVG or PREMUL_SUM",
    targets=(
        Target(
            "torch.distributed.fsdp._fully_shard._fsdp_collectives",
            _patch,
            (
                Parameters("_get_gradient_divide_factors", PARAMETERS),
                Mentions("foreach_reduce", ("_get_gradient_divide_factors",)),
            ),
        ),
    ),
)
