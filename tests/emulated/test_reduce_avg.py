"""``reduce_avg`` on real ranks: the emulated `xccl` refuses AVG, so a mean that comes out came from the shim."""

from __future__ import annotations

from .conftest import Ranks

SHARED = """
AVG = dist.ReduceOp.AVG
MEAN = (2 + 2 + size - 1) / 2
def mine(shape=(), dtype=torch.float32, device="xpu"):
    return torch.full(shape, 2.0 + rank, dtype=dtype, device=device)
def is_mean(tensor, mean=MEAN):
    assert torch.equal(tensor.cpu(), torch.full_like(tensor, mean, device="cpu")), (tensor, mean)
"""
DTYPES = "(torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64)"


def test_the_mean_of_every_dtype_and_of_the_sizes_that_onecl_divided_twice(ranks: Ranks) -> None:
    ranks(
        SHARED
        + f"""
for dtype in {DTYPES}:
    for shape in ((), (1,), (2,), (4,), (28,), (30,), (31,), (33,), (5, 7), (0,)):
        tensor = mine(shape, dtype)
        assert dist.all_reduce(tensor, op=AVG) is None
        is_mean(tensor)
        tensor = mine(shape, dtype)
        dist.all_reduce(tensor, dist.ReduceOp(AVG))  # positional, and as the other of the two types
        is_mean(tensor)
"""
    )


def test_async_divides_once_after_completion_whoever_waits(ranks: Ranks) -> None:
    ranks(
        SHARED
        + f"""
for dtype in {DTYPES}:
    tensor = mine((5,), dtype)
    work = dist.all_reduce(tensor, AVG, async_op=True)
    assert isinstance(work, dist.Work)
    assert work.wait() and work.wait()
    is_mean(tensor)
    assert work.is_completed() and work.is_success()

    tensor = mine((5,), dtype)  # only the future
    (result,) = dist.all_reduce(tensor, AVG, async_op=True).get_future().wait()
    is_mean(tensor)

    tensor = mine((5,), dtype)  # the future, then the work
    work = dist.all_reduce(tensor, AVG, async_op=True)
    work.get_future().wait()
    work.wait()
    work.get_future().wait()
    is_mean(tensor)

    seen = []  # what hangs on the future finds the mean, not the sum
    tensor = mine((5,), dtype)
    work = dist.all_reduce(tensor, AVG, async_op=True)
    work.get_future().then(lambda _: seen.append(tensor.clone())).wait()
    is_mean(seen[0])

tensors = [mine((3,)) for _ in range(50)]
for work in [dist.all_reduce(tensor, AVG, async_op=True) for tensor in tensors]:
    work.wait()
for tensor in tensors:
    is_mean(tensor)
"""
    )


def test_fp16_does_not_overflow_where_the_mean_is_representable(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
for value in (60000.0, 6e-8):
    tensor = torch.full((9,), value, dtype=torch.float16, device="xpu")
    want = tensor.clone()
    dist.all_reduce(tensor, AVG)
    assert torch.equal(tensor, want), (tensor, want)
    output = torch.empty(4, dtype=torch.float16, device="xpu")
    dist.reduce_scatter_single(output, torch.full((4 * size,), value, dtype=torch.float16, device="xpu"), AVG)
    assert torch.equal(output, want[:4]), output
"""
    )


def test_both_bindings_and_every_reducing_collective(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
import warnings
from torch.distributed import distributed_c10d as c10d
warnings.simplefilter("ignore", FutureWarning)
assert dist.all_reduce is c10d.all_reduce
assert dist.reduce_scatter_tensor is c10d.reduce_scatter_tensor
whole = torch.arange(4.0 * size, device="xpu")
want = (whole * (1 + size) / 2)[4 * rank : 4 * rank + 4]
for asynchronous in (False, True):
    for name in ("reduce_scatter_tensor", "reduce_scatter_single", "_reduce_scatter_base"):
        output = torch.zeros(4, device="xpu")
        given = whole * (rank + 1)
        work = getattr(c10d, name)(output, given, AVG, None, asynchronous)
        assert (work is not None) == asynchronous
        work and work.wait()
        assert torch.equal(output, want), (name, output)
        assert torch.equal(given, whole * (rank + 1)), name  # an input is nobody's to divide
    output = torch.zeros(4, device="xpu")
    work = dist.reduce_scatter(output, list((whole * (rank + 1)).chunk(size)), op=AVG, async_op=asynchronous)
    work and work.wait()
    assert torch.equal(output, want)
    pair = [mine((3,)), mine((2, 2))]
    work = dist.all_reduce_coalesced(pair, AVG, async_op=asynchronous)
    work and work.wait()
    for tensor in pair:
        is_mean(tensor)
    for destination in range(size):
        tensor = mine((3,))
        work = dist.reduce(tensor, destination, AVG, async_op=asynchronous)
        work and work.wait()
        if rank == destination:
            is_mean(tensor)
        tensor = mine((3,))
        dist.reduce(tensor, op=AVG, group_dst=destination)
        if rank == destination:
            is_mean(tensor)
"""
    )


def test_the_coalescing_manager_divides_when_it_is_done(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
from torch.distributed import distributed_c10d as c10d
for asynchronous in (False, True):
    few = [mine((3,)), mine((4,))]
    with c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for tensor in few:
            dist.all_reduce(tensor, AVG)
    if asynchronous:
        manager.wait()
        manager.wait()
    for tensor in few:
        is_mean(tensor)
    outputs = [torch.zeros(2, device="xpu") for _ in range(2)]
    with c10d._coalescing_manager(async_ops=asynchronous) as manager:
        for output in outputs:
            dist.reduce_scatter_single(output, mine((2 * size,)), AVG)
    asynchronous and manager.wait()
    for output in outputs:
        is_mean(output)
with c10d._coalescing_manager() as manager:  # SUM stays SUM
    tensor = mine((3,))
    dist.all_reduce(tensor)
is_mean(tensor, MEAN * size)
try:
    with c10d._coalescing_manager():
        raise KeyError("the body's own")
except KeyError:
    pass
c10d._world.pg_coalesce_state.clear()  # what torch leaves behind after an error
tensor = mine((3,))
dist.all_reduce(tensor, AVG)
is_mean(tensor)
"""
    )


def test_the_size_of_the_group_given_counts_and_non_members_get_what_torch_gives(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
import warnings
group = dist.new_group([0, 2])
tensor = mine((3,))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    result = dist.all_reduce(tensor, AVG, group=group, async_op=True)
if rank in (0, 2):
    result.wait()
    is_mean(tensor, 3.0)
else:
    assert result is None
    assert torch.equal(tensor, mine((3,)))
    assert "does not belong to the given group" in str(caught[0].message)
mesh = torch.distributed.device_mesh.init_device_mesh("xpu", (1, size), mesh_dim_names=("dp", "sp"))
tensor = mine()
dist.all_reduce(tensor, AVG, group=mesh["sp"].get_group())
is_mean(tensor)
tensor = mine()
dist.all_reduce(tensor, AVG, group=mesh["dp"].get_group())
is_mean(tensor, 2.0 + rank)
""",
        count=3,
    )


def test_integers_are_refused_with_what_to_do(ranks: Ranks) -> None:
    lines = ranks(
        SHARED
        + """
for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
    tensor = torch.ones(3, dtype=dtype, device="xpu")
    try:
        dist.all_reduce(tensor, AVG)
    except TypeError as error:
        print(error)
    else:
        raise AssertionError(dtype)
    assert torch.equal(tensor, torch.ones(3, dtype=dtype, device="xpu"))
"""
    )
    told = [line for line in lines if "torch.int64" in line]
    assert told
    assert "torch.distributed.all_reduce: ReduceOp.AVG of a torch.int64 tensor on XPU" in told[0]
    assert "reduce with SUM and divide" in told[0]


def test_cpu_tensors_and_other_operations_are_untouched(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
tensor = mine((3,), device="cpu")
work = dist.all_reduce(tensor, AVG, async_op=True)
assert type(work).__module__.startswith("torch"), type(work)  # gloo's own
work.wait()
is_mean(tensor)
tensor = mine((3,))
work = dist.all_reduce(tensor, async_op=True)
assert type(work).__module__.startswith("torch"), type(work)
work.wait()
is_mean(tensor, MEAN * size)
tensor = mine((3,))
dist.all_reduce(tensor, dist.ReduceOp.MAX)
is_mean(tensor, 2.0 + size - 1)
"""
    )


def test_gradients_and_tensor_subclasses(ranks: Ranks) -> None:
    ranks(
        SHARED
        + """
leaf = torch.nn.Parameter(mine((3,)))
dist.all_reduce(leaf.data, AVG)
is_mean(leaf.data)
leaf = mine((3,)).requires_grad_()
with torch.no_grad():
    dist.all_reduce(leaf, AVG)
is_mean(leaf.detach())

calls = []
class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        calls.append(function)
        return function(*args, **(kwargs or {}))
with Mode():
    tensor = mine((3,))
    dist.all_reduce(tensor, AVG)
is_mean(tensor)
assert dist.all_reduce in calls
"""
    )


def test_verls_own_averages(ranks: Ranks) -> None:
    """The three places where verl asks for AVG use these very names at call time."""
    ranks(
        SHARED
        + """
from verl.utils.profiler.performance import reduce_timing
assert reduce_timing({"step": 2.0 + rank}) == {"step": MEAN}
""",
        BACKEND="xccl",
    )


def test_without_the_capability_the_same_call_is_refused(ranks: Ranks) -> None:
    lines = ranks(
        SHARED
        + """
try:
    dist.all_reduce(mine((3,)), AVG)
except RuntimeError as error:
    print("REFUSED", error)
""",
        VERL_XPU_SHIM_DISABLE="reduce_avg",
    )
    assert any("average operation is not supported" in line for line in lines), lines


def test_a_plugin_that_wraps_as_well_divides_once(ranks: Ranks) -> None:
    """Round ours or inside it: each hands SUM to the next. verl-hardware-plugin's wrapper is of this shape."""
    ranks(
        SHARED
        + """
from torch.distributed import distributed_c10d as c10d
from verl_xpu_shim import policy

def plugin(inner):
    def all_reduce(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        if op != AVG or async_op:
            return inner(tensor, op, group, async_op)
        inner(tensor, dist.ReduceOp.SUM, group)
        tensor.div_(dist.get_world_size(group))
    return all_reduce

dist.all_reduce = plugin(dist.all_reduce)
tensor = mine((3,))
dist.all_reduce(tensor, AVG)
is_mean(tensor)

policy.outcomes["reduce_avg", c10d.__name__].edit.undo()
c10d.all_reduce = plugin(c10d.all_reduce)
policy.apply("reduce_avg", c10d)
for asynchronous in (False, True):
    tensor = mine((3,))
    work = c10d.all_reduce(tensor, AVG, None, asynchronous)
    work and work.wait()
    is_mean(tensor)
"""
    )


def test_torch_compile_still_traces_a_collective(ranks: Ranks) -> None:
    ranks(
        """
def twice_the_sum(tensor):
    doubled = tensor * 2
    dist.all_reduce(doubled)
    return doubled
compiled = torch.compile(twice_the_sum, backend="aot_eager", fullgraph=True)
assert compiled(torch.full((3,), 1.0 + rank, device="xpu")).tolist() == [6.0] * 3
"""
    )
