"""verl's marker functions, in real verl, on the emulated device and without one."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import itt_collector
import wheels

from .conftest import Child

Branch = tuple[str, tuple[Path, ...]]

MARKERS = ("marked_timer", "mark_start_range", "mark_end_range", "mark_annotate")


def capturers(verl: Path) -> list[str]:
    """Every module that binds a marker by value, the star re-export included; read from the files."""
    found = []
    for path in sorted((verl / "verl").rglob("*.py")):
        module = ".".join(path.relative_to(verl).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and {name.name for name in node.names} & {*MARKERS, "*"}:
                source = node.module or ""
                if "profiler" in source or "debug" in source or source in ("performance", "nvtx_profile", "profile"):
                    found.append(module)
    return sorted(set(found))


#: What a trainer does with markers, and what it may lean on.
USE = """
import asyncio, inspect
from verl.utils.profiler import mark_annotate, mark_end_range, mark_start_range, marked_timer

times = {}
with marked_timer("stage", times, color="red"):
    with marked_timer("inner", times, domain="other"):
        pass
with marked_timer("stage", times):
    pass
assert times["stage"] > times["inner"] > 0

# As verl does: on an exception nothing is added, and it comes through unchanged.
error, before = RuntimeError("the user's own"), dict(times)
try:
    with marked_timer("stage", times):
        raise error
except RuntimeError as caught:
    assert caught is error and times == before
else:
    raise AssertionError

decorated = marked_timer("decorated", times)(lambda: 5)
assert decorated() == decorated() == 5

outer, other = mark_start_range("outer", color="blue"), mark_start_range(message="other")
mark_end_range(outer)
mark_end_range(range_id=other)

@mark_annotate(color="green")
async def coroutine():
    with marked_timer("awaiting", times):
        await asyncio.sleep(0.01)

@mark_annotate("named")
def generator():
    yield 1

async def both():
    await asyncio.gather(coroutine(), coroutine())

assert inspect.iscoroutinefunction(coroutine) and inspect.isgeneratorfunction(generator)
asyncio.run(both())
assert list(generator()) == [1]
"""


def test_every_module_that_captures_a_marker_holds_ours(
    child: Child, log: Path, verl: Path, core: Path, branch: Branch
) -> None:
    modules = capturers(verl)
    assert {"verl.utils.debug", "verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.trainer_base"} < set(modules)
    begin, nvtx = branch
    done = child(
        begin
        + f"""
import importlib, json
held = {{}}
for name in {modules!r}:
    module = importlib.import_module(name)
    import verl.utils.profiler as profiler
    for marker in {MARKERS!r}:
        if hasattr(module, marker):
            ours = getattr(module, marker).__verl_xpu_shim__ == "profiler_markers"
            held.setdefault(name, {{}})[marker] = ours and getattr(module, marker) is getattr(profiler, marker)
where = profiler.__file__, profiler.marked_timer.__wrapped__.__module__
{USE}
print(json.dumps([where, held]))
""",
        collect=True,
        xpu=True,
        path=(verl, core, *nvtx),
    )
    (file, took), held = json.loads(done.stdout.splitlines()[-1])
    assert file.startswith(str(verl))
    assert took == f"verl.utils.profiler.{'nvtx_profile' if nvtx else 'performance'}"
    assert set(held) == set(modules)
    assert all(all(markers.values()) for markers in held.values()), held
    assert set(held["verl.utils.debug"]) == set(MARKERS)

    named = sorted((begin.domain, begin.name) for begin, _ in itt_collector.ranges(itt_collector.read(log)))
    expected = ["named", "other", "outer", *["stage"] * 3, *["coroutine", "awaiting", "decorated"] * 2]
    assert named == sorted([("other", "inner"), *(("verl", name) for name in expected)])


def test_without_an_xpu_everything_is_the_original(child: Child, verl: Path) -> None:
    """The code of every function of ``verl.utils.profiler``, with the shim installed and with it switched off."""
    code = """
import importlib, inspect, json, sys, types
import verl.utils.profiler as profiler
from verl.utils.profiler import config, performance, profile

made = profiler.DistProfiler(0, profiler.ProfilerConfig(tool="vtune", enable=True))
assert type(made._impl) is profile._NoOpProfiler
print("verl_xpu_shim.profiling.ranges" in sys.modules, file=sys.stderr)

def functions(owner, prefix):
    for name, value in sorted(vars(owner).items()):
        if inspect.isclass(value) and value.__module__.startswith("verl.utils.profiler"):
            yield from functions(value, f"{prefix}.{name}")
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            plain = inspect.unwrap(value)
            code = plain.__code__
            of_code = code.co_filename, repr(code.co_consts), code.co_names
            yield f"{prefix}.{name}", value.__module__, value.__qualname__, *of_code, sorted(vars(value))

modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("verl.utils.profiler")]
print(json.dumps([line for module in modules for line in functions(module, module.__name__)], default=str))
"""
    path = (verl, wheels.installed("nvtx"))  # so that every module is there
    installed, off = (child(code, path=path, VERL_XPU_SHIM=switch) for switch in ("1", "0"))
    ours = json.loads(installed.stdout.splitlines()[-1])
    assert len(ours) > 50

    def stable(lines: list[list[object]]) -> list[str]:
        return [re.sub(r" at 0x[0-9a-f]+", "", json.dumps(line)) for line in lines]

    assert stable(ours) == stable(json.loads(off.stdout.splitlines()[-1]))
    assert "True" not in installed.stderr.splitlines()


def test_ascend_markers_are_left_alone(child: Child) -> None:
    """verl believes in an NPU; modules that define nothing stand for Ascend's libraries."""
    child(
        f"""
import sys, types
import verl.utils.device
sys.modules["nvtx"] = None
npu, top = types.ModuleType("torch_npu.npu"), types.ModuleType("torch_npu")
npu.mstx, top.npu, top.profiler = types.ModuleType("mstx"), npu, types.ModuleType("profiler")
sys.modules.update({{"torch_npu": top, "torch_npu.npu": npu}})
verl.utils.device.is_npu_available = True

from verl.utils import profiler
for name in {MARKERS!r}:
    marker = getattr(profiler, name)
    assert marker.__module__ == "verl.utils.profiler.mstx_profile" and not hasattr(marker, "__verl_xpu_shim__"), name
""",
        xpu=True,
        path=(wheels.installed("verl==0.9.1"),),
    )
