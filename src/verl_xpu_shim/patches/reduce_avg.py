"""``reduce_avg``: ``ReduceOp.AVG`` on XPU tensors becomes a sum and one division by the size of the group.

oneCCL refuses AVG on its scheduler path (intel/torch-xpu-ops#2361), which it picks by size and topology, and divided
twice for small tensors before oneAPI 2026.0 (#3020). verl averages its loss, its validation loss and its timings that
way. Can go with oneCCL 2022.2 everywhere.

The tensor's device decides, not the group's backend: in Ray workers that is ``cpu:gloo,xpu:xccl``. Out of reach from
Python are the functional collectives (``torch.ops._c10d_functional``, so DTensor's ``Partial("avg")``); verl has none.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters

#: Every collective of ``torch.distributed`` that takes an ``op``: its parameters, which of them it writes, and which it
#: reads. Those that only some PyTorch versions have are patched where they exist.
COLLECTIVES: Final = {
    "all_reduce": (("tensor", "op", "group", "async_op"), "tensor", "tensor"),
    "all_reduce_coalesced": (("tensors", "op", "group", "async_op"), "tensors", "tensors"),
    "reduce": (("tensor", "dst", "op", "group", "async_op", "group_dst"), "tensor", "tensor"),
    "reduce_scatter": (("output", "input_list", "op", "group", "async_op"), "output", "input_list"),
    "reduce_scatter_single": (("output", "input", "op", "group", "async_op"), "output", "input"),
    "reduce_scatter_tensor": (("output", "input", "op", "group", "async_op"), "output", "input"),
    "_reduce_scatter_base": (("output", "input", "op", "group", "async_op"), "output", "input"),
}
OPTIONAL: Final = frozenset({"reduce_scatter_single", "_reduce_scatter_base", "all_reduce_coalesced"})


def _patch(c10d: ModuleType, edit: Edit) -> None:
    pending: dict[Any, list[Callable[[], None]]] = {}
    for name, (_, written, read) in COLLECTIVES.items():
        if hasattr(c10d, name):
            edit.wrap(c10d, name, functools.partial(_averaging, c10d, pending, written, read))
    edit.wrap(c10d, "_coalescing_manager", functools.partial(_coalescing, c10d, pending))


def _averaging(
    c10d: ModuleType,
    pending: dict[Any, list[Callable[[], None]]],
    written: str,
    read: str,
    original: Callable[..., Any],
) -> Callable[..., Any]:
    signature = inspect.signature(original)
    name = original.__name__

    def collective(*args: Any, **kwargs: Any) -> Any:
        op = kwargs.get("op", next(filter(_is_op, args), None))
        if op is None or getattr(op, "op", op) != c10d.ReduceOp.RedOpType.AVG:
            return original(*args, **kwargs)
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        asked = call.arguments
        outputs, inputs = _tensors(asked[written]), _tensors(asked[read])
        group = asked["group"]
        if not _is_ours(c10d, outputs + inputs) or c10d._rank_not_in_group(group):
            return original(*args, **kwargs)
        _refuse_integers(name, inputs)
        group = group or c10d._get_default_group()
        asked["op"] = c10d.ReduceOp.SUM
        widened = _widen(asked, written, read)
        receives = name != "reduce" or _is_destination(c10d, group, asked)
        finish = functools.partial(_divide, outputs if receives else [], widened, group.size())

        work = original(*call.args, **call.kwargs)
        if group in c10d._world.pg_coalesce_state:
            pending[group].append(finish)
        elif asked["async_op"]:
            return _averaged_work(c10d, work, finish)
        else:
            finish()
        return work

    def _is_op(value: Any) -> bool:
        return isinstance(value, c10d.ReduceOp)

    return collective


def _tensors(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _is_ours(c10d: ModuleType, tensors: list[Any]) -> bool:
    """Plain XPU tensors: what overrides ``__torch_function__`` comes back through here once it is unwrapped."""
    torch = c10d.torch
    return all(isinstance(each, torch.Tensor) and each.device.type == "xpu" for each in tensors) and not (
        torch.overrides.has_torch_function(tuple(tensors))
    )


def _refuse_integers(name: str, tensors: list[Any]) -> None:
    for each in tensors:
        if not (each.is_floating_point() or each.is_complex()):
            raise TypeError(
                f"torch.distributed.{name}: ReduceOp.AVG of a {each.dtype} tensor on XPU would have to round the mean; "
                "convert it to a floating dtype, or reduce with SUM and divide as you mean it"
            )


def _is_destination(c10d: ModuleType, group: Any, asked: dict[str, Any]) -> bool:
    # Elsewhere the tensor isn't a result, and where the backend leaves it alone, so must we.
    destination = asked["group_dst"]
    if destination is None:
        destination = c10d.get_group_rank(group, asked["dst"])
    return bool(c10d.get_rank(group) == destination)


def _widen(asked: dict[str, Any], written: str, read: str) -> list[Any]:
    """Swap fp16 arguments for float32 copies, whose sum can't overflow where the mean is representable.

    Returns the copies that the collective writes, in the order of the caller's tensors; empty where none was needed.
    """
    import torch

    if not any(each.dtype is torch.float16 for each in _tensors(asked[read])):
        return []
    copies = {name: [each.detach().float() for each in _tensors(asked[name])] for name in {written, read}}
    for name, wide in copies.items():
        asked[name] = wide if isinstance(asked[name], list | tuple) else wide[0]
    return copies[written]


def _divide(outputs: list[Any], widened: list[Any], size: int) -> None:
    for index, output in enumerate(outputs):
        # Detached: like the collective itself, the division is no step of autograd.
        if widened:
            output.detach().copy_(widened[index].div_(size))
        else:
            output.detach().div_(size)


def _averaged_work(c10d: ModuleType, work: Any, finish: Callable[[], None]) -> Any:
    """A ``Work`` that is done when ``work`` and then ``finish`` are; a future for the future that some return instead.

    The division hangs on the future, which runs it once, whoever waits for what and however often.
    """

    def divide(future: Any) -> Any:
        value = future.value()  # raises what the collective raised
        finish()
        return value

    if not isinstance(work, c10d.Work):  # all_reduce_coalesced
        return work.then(divide)
    return _work_class(c10d)(work, work.get_future().then(divide))


@functools.cache
def _work_class(c10d: ModuleType) -> type:
    class AveragedWork(c10d.Work):  # type: ignore[name-defined,misc]
        def __init__(self, work: Any, future: Any) -> None:
            super().__init__()
            self._work: Final = work
            self._future: Final = future

        def wait(self, *timeout: Any) -> bool:
            self._work.wait(*timeout)
            self._future.wait()
            return True

        def synchronize(self) -> None:
            self.wait()

        def get_future(self) -> Any:
            return self._future

        def is_completed(self) -> bool:
            return bool(self._future.done())

        def is_success(self) -> bool:
            return bool(self._work.is_success())

        def exception(self) -> Any:
            return self._work.exception()

        def result(self) -> Any:
            return self._future.value()

        def source_rank(self) -> int:
            return int(self._work.source_rank())

    return AveragedWork


def _coalescing(
    c10d: ModuleType,
    pending: dict[Any, list[Callable[[], None]]],
    original: Callable[..., Any],
) -> Callable[..., Any]:
    @contextlib.contextmanager
    def coalescing_manager(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        group = group or c10d._get_default_group()
        divisions = pending[group] = []
        try:
            with original(group, device, async_ops) as manager:
                yield manager
        finally:
            del pending[group]

        def finish() -> None:
            for divide in divisions:
                divide()

        if not divisions:
            return
        if async_ops and manager.works:
            manager.works[-1] = _averaged_work(c10d, manager.works[-1], finish)
        else:
            finish()

    return coalescing_manager


CAPABILITY: Final = Capability(
    name="reduce_avg",
    required=True,
    summary="`ReduceOp.AVG` on XPU tensors outside FSDP2: the mean, also async",
    targets=(
        Target(
            "torch.distributed.distributed_c10d",
            _patch,
            (
                *(Parameters(name, names) for name, (names, _, _) in COLLECTIVES.items() if name not in OPTIONAL),
                Parameters("_coalescing_manager", ("group", "device", "async_ops")),
                Mentions("_coalescing_manager", ("pg_coalesce_state",)),
                Parameters("_rank_not_in_group", ("group",)),
            ),
        ),
    ),
)
