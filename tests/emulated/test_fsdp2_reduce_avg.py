"""``fsdp2_reduce_avg``: the emulated `xccl` refuses AVG and PREMUL_SUM; gradients must be those of one device.

``reduce_avg`` is left out: it would catch FSDP2's AVG as well, and hide a fault here.
"""

from __future__ import annotations

import pytest

from .conftest import Ranks

ALONE = {"VERL_XPU_SHIM_DISABLE": "reduce_avg"}

SHARED = """
import copy
from torch import nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.device_mesh import init_device_mesh

def make():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(3)))

def batch(of):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 + of))

def alone(ranks_summed=None):
    # One device sees what all ranks see: the mean over ranks of the loss.
    model = make()
    for of in range(size):
        (model(batch(of)).pow(2).mean() / size).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}

def sharded(mesh, shard=lambda model, **kwargs: [*(fully_shard(layer, **kwargs) for layer in model),
                                                 fully_shard(model, **kwargs)], **kwargs):
    model = make().to("xpu")
    shard(model, mesh=mesh, **kwargs)
    return model

def gradients(model):
    model(batch(rank).to("xpu")).pow(2).mean().backward()
    return {name: parameter.grad.full_tensor().cpu() for name, parameter in model.named_parameters()}

def same(found, wanted, scale=1.0, tolerance=1e-6):
    assert found.keys() == wanted.keys()
    for name in wanted:
        assert torch.allclose(found[name], wanted[name] * scale, rtol=0, atol=tolerance), (
            name, (found[name] - wanted[name] * scale).abs().max())

flat = init_device_mesh("xpu", (size,), mesh_dim_names=("dp",))
"""


@pytest.mark.parametrize("backend", ["xccl", "cpu:gloo,xpu:xccl"])
def test_gradients_are_those_of_one_device(ranks: Ranks, backend: str) -> None:
    ranks(
        SHARED
        + """
same(gradients(sharded(flat)), alone())
root_only = lambda model, **kwargs: fully_shard(model, **kwargs)
same(gradients(sharded(flat, root_only)), alone())
half = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
same(gradients(sharded(flat, mp_policy=half)), alone(), tolerance=1e-2)
half = MixedPrecisionPolicy(reduce_dtype=torch.float16)
same(gradients(sharded(flat, mp_policy=half)), alone(), tolerance=1e-3)
""",
        BACKEND=backend,
        **ALONE,
    )


def test_divide_factors_of_ones_own(ranks: Ranks) -> None:
    """A factor makes PyTorch choose PREMUL_SUM, or AVG where it is the size of the group."""
    ranks(
        SHARED
        + """
for factor in (float(size), 3.0, 1.0):
    model = sharded(flat)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(factor)
    same(gradients(model), alone(), scale=size / factor)
""",
        **ALONE,
    )


def test_hsdp_and_groups_of_one(ranks: Ranks) -> None:
    """Four ranks as every grid, and with a factor: where nothing is scattered the division is FSDP's own."""
    ranks(
        SHARED
        + """
for shape in ((2, 2), (1, 4), (4, 1)):
    grid = init_device_mesh("xpu", shape, mesh_dim_names=("replicate", "shard"))
    same(gradients(sharded(grid)), alone())
    if shape != (4, 1):
        continue
    model = sharded(grid)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(2.0)
    same(gradients(model), alone(), scale=size / 2.0)  # summed over four ranks, divided by two
""",
        count=4,
        **ALONE,
    )


def test_a_module_sharded_before_the_shim_came_in_is_covered(ranks: Ranks) -> None:
    """Every group comes through one function, whenever the module was made: nothing is set on modules."""
    ranks(
        SHARED
        + """
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from verl_xpu_shim import policy
name = "torch.distributed.fsdp._fully_shard._fsdp_collectives"
policy.outcomes["fsdp2_reduce_avg", name].edit.undo()
model = sharded(flat)
try:
    gradients(model)
except RuntimeError as error:
    assert "average" in str(error).lower() or "AVG" in str(error), error
else:
    raise AssertionError("without the shim the emulated device refuses AVG")
policy.apply("fsdp2_reduce_avg", _fsdp_collectives)
fresh = sharded(flat)
policy.outcomes["fsdp2_reduce_avg", name].edit.undo()
policy.apply("fsdp2_reduce_avg", _fsdp_collectives)
same(gradients(fresh), alone())
""",
        **ALONE,
    )


def test_accumulation_without_reduction_of_every_step(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
grid = init_device_mesh("xpu", (2, 2), mesh_dim_names=("replicate", "shard"))
model = sharded(grid)
for last in (False, True):
    model.set_requires_all_reduce(last)
    (model(batch(rank).to("xpu")).pow(2).mean() / 2).backward()
same({name: p.grad.full_tensor().cpu() for name, p in model.named_parameters()}, alone())
""",
        count=4,
        **ALONE,
    )


def test_other_devices_and_a_forced_sum_are_answered_as_before(ranks: Ranks) -> None:
    ranks(
        """
from torch.distributed.fsdp._fully_shard._fsdp_collectives import _get_gradient_divide_factors as factors
original = factors.__wrapped__

def plain(answer):  # the repr of a PREMUL_SUM tells its address
    return [getattr(each, "op", each) if isinstance(each, dist.ReduceOp) else each for each in answer]

group = dist.group.WORLD
for device in ("cpu", "cuda", "mtia", ""):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for factor in (None, 2.0, 3.0):
            for forced in (False, True):
                arguments = (group, None, dtype, device, factor, forced)
                assert plain(factors(*arguments)) == plain(original(*arguments)), arguments
S = dist.ReduceOp.SUM
assert factors(group, None, torch.float32, "xpu") == (None, 2.0, S, S)
assert factors(group, None, torch.float32, device_type="xpu", factor=3.0) == (None, 3.0, S, S)
forced = (group, None, torch.float32, "xpu", None, True)
assert factors(*forced) == original(*forced)
""",
        **ALONE,
    )
