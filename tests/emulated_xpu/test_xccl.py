"""torch.distributed on real ranks: gloo moves the bytes, `xccl` has the rules."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor import distribute_tensor

from .harness import environment
from .harness import ranks
from .harness import run_ranks

BOTH = "cpu:gloo,xpu:xccl"


def start(backend: str = BOTH) -> int:
    """Joins the group; returns the rank."""
    torch.xpu.set_device(int(os.environ["LOCAL_RANK"]) % torch.xpu.device_count())
    dist.init_process_group(backend)
    return dist.get_rank()


def full(value: float, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, value, device="xpu", dtype=dtype)


@ranks(2)
def test_every_collective() -> None:
    rank = start()

    for dtype in (torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.complex64):
        for shape in ((), (0,), (3, 2)):
            tensor = full(rank + 1, *shape, dtype=dtype)
            dist.all_reduce(tensor)
            assert torch.equal(tensor.cpu(), torch.full(shape, 3, dtype=dtype))
            dist.broadcast(tensor.fill_(rank), src=1)
            assert torch.equal(tensor.cpu(), torch.full(shape, 1, dtype=dtype))
    flags = torch.tensor([True, False, rank == 0], device="xpu")
    dist.all_reduce(flags)
    assert flags.tolist() == [True, False, True]
    for op, expected in ((dist.ReduceOp.MAX, 2), (dist.ReduceOp.MIN, 1), (dist.ReduceOp.PRODUCT, 2)):
        tensor = full(rank + 1, 2)
        dist.all_reduce(tensor, op)
        assert tensor.tolist() == [expected] * 2
    on_cpu = torch.ones(2)
    dist.all_reduce(on_cpu)
    assert on_cpu.tolist() == [2, 2]

    tensor = full(rank + 1, 2)
    dist.reduce(tensor, dst=1)
    assert tensor.tolist() == ([3, 3] if rank == 1 else [1, 1])

    gathered = full(0, 4)
    dist.all_gather_into_tensor(gathered, full(rank, 2))
    assert gathered.tolist() == [0, 0, 1, 1]
    gathered[rank * 2 : rank * 2 + 2] = 7 + rank
    dist.all_gather_into_tensor(gathered, gathered[rank * 2 : rank * 2 + 2])  # in place
    assert gathered.tolist() == [7, 7, 8, 8]
    parts = [full(0, 1), full(0, 3)]
    dist.all_gather(parts, full(rank, 1 + 2 * rank))  # of different sizes
    assert [part.tolist() for part in parts] == [[0], [1, 1, 1]]
    parts = [full(0, 2), full(0, 2)] if rank == 0 else None
    dist.gather(full(rank, 2), parts, dst=0)
    assert parts is None or [part.tolist() for part in parts] == [[0, 0], [1, 1]]
    mine = full(0, 2)
    dist.scatter(mine, [full(4, 2), full(5, 2)] if rank == 0 else None, src=0)
    assert mine.tolist() == [4 + rank] * 2

    mine = full(0, 2)
    dist.reduce_scatter_tensor(mine, torch.arange(4.0, device="xpu"))
    assert mine.tolist() == [[0, 2], [4, 6]][rank]
    dist.reduce_scatter(mine, [full(1, 2), full(2, 2)])
    assert mine.tolist() == [2 * (rank + 1)] * 2
    inputs = torch.arange(4.0, device="xpu")
    dist.reduce_scatter_tensor(inputs[rank * 2 : rank * 2 + 2], inputs)  # in place
    assert inputs[rank * 2 : rank * 2 + 2].tolist() == [[0, 2], [4, 6]][rank]

    received = full(0, 4)
    dist.all_to_all_single(received, torch.arange(4.0, device="xpu") + 10 * rank)
    assert received.tolist() == [[0, 1, 10, 11], [2, 3, 12, 13]][rank]
    parts = [full(0, 1), full(0, 1)]
    dist.all_to_all(parts, [full(10 * rank, 1), full(10 * rank + 1, 1)])
    assert [part.item() for part in parts] == [rank, 10 + rank]

    if rank == 0:
        dist.send(full(7, 2, 3).t(), 1)
    else:
        received = full(0, 2, 3).t()
        dist.recv(received, 0)
        assert (received == 7).all()
    received = full(0, 2)
    exchange = [dist.P2POp(dist.isend, full(rank, 2), 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    assert received.tolist() == [1 - rank] * 2

    objects: list[object] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    assert objects == [{"rank": 0}, {"rank": 1}]
    dist.barrier()
    dist.barrier(device_ids=[rank])
    dist.destroy_process_group()


@ranks(2)
def test_async_work_futures_and_coalescing() -> None:
    import torch.distributed._functional_collectives as functional

    rank = start("xccl")
    assert dist.get_backend() == "xccl"
    world = dist.group.WORLD

    tensor = full(rank + 1, 1000)
    work = dist.all_reduce(tensor, async_op=True)
    assert work.wait()
    assert work.wait()
    assert work.is_completed()
    assert tensor[0].item() == 3

    tensor = full(rank + 1, 3)
    future = dist.all_reduce(tensor, async_op=True).get_future()
    assert future.then(lambda done: done.value()[0] * 2).wait().tolist() == [6] * 3
    assert tensor.tolist() == [3] * 3

    mine = full(0, 2)
    future = dist.reduce_scatter_tensor(mine, torch.arange(4.0, device="xpu"), async_op=True).get_future()
    assert future.then(lambda done: done.value()[0].tolist()).wait() == [[0, 2], [4, 6]][rank]
    assert mine.tolist() == [[0, 2], [4, 6]][rank]

    tensors = [full(rank + 1, 2), full(rank + 2, 3)]
    dist.all_reduce_coalesced(tensors)
    assert [tensor[0].item() for tensor in tensors] == [3, 5]
    with dist._coalescing_manager(group=world, device=torch.device("xpu"), async_ops=True) as manager:
        dist.all_reduce(tensors[0])
        dist.all_reduce(tensors[1])
    manager.wait()
    assert [tensor[0].item() for tensor in tensors] == [6, 10]
    outputs = [full(0, 1), full(0, 2)]
    with dist._coalescing_manager(group=world, device=torch.device("xpu")):
        dist.reduce_scatter_tensor(outputs[0], full(1, 2))
        dist.reduce_scatter_tensor(outputs[1], full(2, 4))
    assert [output[0].item() for output in outputs] == [2, 4]

    assert (functional.all_reduce(full(1, 2), "sum", world) + 0).tolist() == [2, 2]
    assert (functional.all_gather_tensor(full(rank, 1), 0, world) + 0).tolist() == [0, 1]
    assert (functional.reduce_scatter_tensor(full(1, 2), "sum", 0, world) + 0).tolist() == [2]
    many = functional.all_reduce_coalesced([full(1, 2), full(2, 1)], "sum", world)
    assert [one.wait().tolist() for one in many] == [[2, 2], [4]]
    dist.destroy_process_group()


@ranks(2)
def test_what_xccl_refuses() -> None:
    rank = start()
    average, scheduler = dist.ReduceOp.AVG, "average operation is not supported for the scheduler path"
    refused = [
        lambda: dist.all_reduce(full(1, 2), average),
        lambda: dist.all_reduce(full(1, 2), average, async_op=True),
        lambda: dist.reduce(full(1, 2), 0, average),
        lambda: dist.reduce_scatter_tensor(full(1, 2), full(1, 4), average),
        lambda: dist.reduce_scatter(full(1, 2), [full(1, 2)] * 2, average),
        lambda: dist.all_reduce_coalesced([full(1, 2)], average),
    ]
    for call in refused:
        with pytest.raises(RuntimeError, match=scheduler):
            call()
    for op in (dist._make_nccl_premul_sum(0.5), dist.ReduceOp.BAND):
        with pytest.raises(ValueError, match="with XCCL"):
            dist.all_reduce(full(1, 2), op)
        with pytest.raises(ValueError, match="with XCCL"):
            dist.reduce_scatter_tensor(full(1, 2), full(1, 4), op)
    with pytest.raises(TypeError, match="boolean"):
        dist.all_reduce(torch.ones(2, dtype=torch.bool, device="xpu"), average)
    with pytest.raises(TypeError, match="not supported for XCCL"):
        dist.all_reduce(full(1, 2, dtype=torch.int16))
    with pytest.raises(ValueError, match="contiguous"):
        dist.all_reduce(full(1, 4, 4).t()[::2])
    gloo = dist.new_group(backend="gloo")
    with pytest.raises(RuntimeError, match="No backend type associated with device type xpu"):
        dist.all_reduce(full(1, 2), group=gloo)
    xccl = dist.new_group(backend="xccl")
    with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
        dist.all_reduce(torch.ones(2), group=xccl)
    tensor = full(rank, 2)
    dist.all_reduce(tensor, group=xccl)
    assert tensor.tolist() == [1, 1]
    dist.destroy_process_group()


def averages() -> list[float]:
    start()
    seen = []
    for shape in ((), (1,), (8,), (31,), (32,), (1024,)):
        tensor = full(dist.get_rank() + 1, *shape)
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        seen.append(tensor.flatten()[0].item())
    dist.destroy_process_group()
    return seen


def test_average_where_it_is_supported_and_where_it_divides_twice() -> None:
    assert run_ranks(averages, 2, environment(xccl_avg="allow")) == [[1.5] * 6] * 2
    assert run_ranks(averages, 2, environment(xccl_avg="twice")) == [[0.75, 0.75, 1.5, 0.75, 1.5, 1.5]] * 2


def narrow() -> list[str]:
    """Each rank masks all but its own device, as Ray does; what a first collective says, and one of two hosts."""
    rank = os.environ["LOCAL_RANK"]
    os.environ["ZE_AFFINITY_MASK"] = rank
    start()
    said = []
    for host in ("one", rank):
        os.environ["XPU_EMU_HOST"] = host
        try:
            dist.all_reduce(full(1, 2), group=dist.new_group(backend="xccl"))
            said.append(f"{torch.xpu.device_count()} visible, {torch.xpu.get_device_properties().physical_index}")
        except RuntimeError as error:
            said.append(str(error))
    return said


def test_a_narrow_mask_is_refused_by_every_rank() -> None:
    for rank, (said, two_hosts) in enumerate(run_ranks(narrow, 2, environment(devices=2))):
        assert "ZE_AFFINITY_MASK=0, device 0) doesn't see device 1" in said
        assert two_hosts == f"1 visible, {rank}"
    allowed = run_ranks(narrow, 2, environment(devices=2, narrow_mask="allow"))
    assert allowed == [["1 visible, 0"] * 2, ["1 visible, 1"] * 2]


def wide() -> list[int]:
    start()
    dist.all_reduce(full(1, 2))
    return [torch.xpu.device_count(), torch.xpu.get_device_properties().physical_index]


def test_a_wide_mask_is_fine_and_a_shared_device_can_be_seen() -> None:
    assert run_ranks(wide, 2, environment(devices=4, ZE_AFFINITY_MASK="3,2")) == [[2, 2], [2, 3]]
    assert run_ranks(wide, 2, environment(devices=1)) == [[1, 0], [1, 0]]


def losses(wrap: Callable[[nn.Module], nn.Module], batch: slice) -> list[float]:
    """Three steps of training on a part of each batch; the losses, averaged over the group."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).to("xpu"))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    seen = []
    for step in range(3):
        torch.manual_seed(step)
        x, y = torch.randn(8, 8).to("xpu")[batch], torch.randn(8, 4).to("xpu")[batch]
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        whole = loss.detach().clone()
        dist.all_reduce(whole)
        seen.append(whole.item() / dist.get_world_size())
    return seen


def fsdp2(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    for layer in (model[0], model[2], model):  # type: ignore[index]
        fully_shard(layer, mesh=mesh)
    for layer in model.modules():
        if isinstance(layer, FSDPModule):
            layer.set_force_sum_reduction_for_comms(True)
    return model


@ranks(2)
def test_data_parallel_training_equals_one_device() -> None:
    rank = start()
    expected = losses(lambda model: model, slice(0, 8))
    mesh = init_device_mesh("xpu", (2,))
    for name, wrap in {
        "ddp": nn.parallel.DistributedDataParallel,
        "fsdp1": functools.partial(FullyShardedDataParallel, device_id=rank, use_orig_params=True),
        "fsdp2": functools.partial(fsdp2, mesh=mesh),
    }.items():
        assert losses(wrap, slice(rank * 4, rank * 4 + 4)) == pytest.approx(expected, abs=1e-6), name

    sharded = distribute_tensor(torch.arange(8.0, device="xpu").view(4, 2), mesh, [Shard(0)])
    assert (sharded * 2).sum().full_tensor().item() == 56
    assert sharded.redistribute(placements=[Shard(1)]).to_local().tolist() == [[i * 2.0 + rank] for i in range(4)]
    dist.destroy_process_group()


@ranks(4)
def test_hybrid_sharding_equals_one_device() -> None:
    rank = start()
    expected = losses(lambda model: model, slice(0, 8))
    mesh = init_device_mesh("xpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    part = slice(rank * 2, rank * 2 + 2)
    assert losses(functools.partial(fsdp2, mesh=mesh), part) == pytest.approx(expected, abs=1e-6)
    dist.destroy_process_group()
