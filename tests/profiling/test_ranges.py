"""Ranges, as a real ITT collector receives them from processes of their own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import itt_collector

from .conftest import Child


def test_ranges_pair_up_whatever_their_order(child: Child, log: Path) -> None:
    child(
        """
import asyncio, threading
from verl_xpu_shim.profiling import ranges

with ranges.Span("outer"):
    with ranges.Span("inner", domain="other"):
        pass

async def stage(name, seconds):
    with ranges.Span(name):
        await asyncio.sleep(seconds)

async def both():
    await asyncio.gather(stage("long", 0.04), stage("short", 0.02))

asyncio.run(both())
first, second = ranges.begin("first"), ranges.begin("second")
ranges.end(first)
thread = threading.Thread(target=ranges.end, args=(second,))
thread.start()
thread.join()
ranges.end(second)
""",
        collect=True,
    )
    calls = itt_collector.read(log)
    pairs = {begin.name: (begin, end) for begin, end in itt_collector.ranges(calls)}
    assert set(pairs) == {"outer", "inner", "long", "short", "first", "second"}
    assert {name: begin.domain for name, (begin, _) in pairs.items()} == {
        **dict.fromkeys(pairs, "verl"),
        "inner": "other",
    }

    def seconds(name: str) -> float:
        begin, end = pairs[name]
        return (end.time - begin.time) / 1e9

    assert seconds("long") > 0.035 > seconds("short") > 0.015  # a stack a thread would end them the other way round
    assert pairs["second"][0].tid != pairs["second"][1].tid
    assert pairs["first"][1].time < pairs["second"][1].time


def test_an_exception_closes_its_range(child: Child, log: Path) -> None:
    child(
        """
from verl_xpu_shim.profiling import ranges
try:
    with ranges.Span("stage"):
        raise KeyError("the user's own")
except KeyError as error:
    assert error.args == ("the user's own",)
""",
        collect=True,
    )
    assert [begin.name for begin, _ in itt_collector.ranges(itt_collector.read(log))] == ["stage"]


def test_a_forked_child_has_ranges_of_its_own(child: Child, log: Path, tmp_path: Path) -> None:
    child(
        """
import os
from verl_xpu_shim.profiling import ranges
opened = ranges.begin("parent's")
pid = os.fork()
if pid == 0:
    ranges.end(opened)
    with ranges.Span("child's"):
        pass
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
ranges.end(opened)
""",
        collect=True,
        VERL_XPU_SHIM_MARKERS=f"itt,chrome:{tmp_path / 'markers'}",
    )
    pairs = itt_collector.ranges(itt_collector.read(log))
    assert {begin.name for begin, _ in pairs} == {"parent's", "child's"}
    assert all(begin.pid == end.pid for begin, end in pairs)
    assert len(list((tmp_path / "markers").iterdir())) == 2


def test_resume_and_pause_nest(child: Child, log: Path) -> None:
    child(
        """
from verl_xpu_shim.profiling import ranges
ranges.pause()
ranges.resume()
ranges.resume()
ranges.pause()
with ranges.Span("seen"):
    pass
ranges.mark("step")
ranges.pause()
ranges.pause()
with ranges.Span("unseen"):
    pass
""",
        collect=True,
        start_paused=True,
    )
    calls = [(call.call, call.name) for call in itt_collector.read(log)]
    assert calls == [
        ("attached", "-"),
        ("resume", "-"),
        ("begin", "seen"),
        ("end", "-"),
        ("event", "step"),
        ("pause", "-"),
    ]


def test_what_is_decorated_stays_what_it_is(child: Child, log: Path) -> None:
    child(
        """
import asyncio, functools, inspect
from verl_xpu_shim.profiling import ranges

def annotate(function):
    return ranges.annotated(function, functools.partial(ranges.Span, function.__name__))

@annotate
def plain(a, *, b):
    "documented"
    return a + b

@annotate
async def coroutine():
    await asyncio.sleep(0)
    return 7

def delegating():
    try:
        got = yield 1
    except ValueError:
        got = "thrown"
    yield got
    return 3
generator = annotate(delegating)

async def agen():
    try:
        got = yield 1
    except ValueError:
        got = "thrown"
    try:
        yield got
    finally:
        closed.append(True)
async_generator, closed = annotate(agen), []

assert plain(1, b=2) == 3 and plain.__doc__ == "documented" and "b" in inspect.signature(plain).parameters
assert inspect.iscoroutinefunction(coroutine) and asyncio.run(coroutine()) == 7
assert inspect.isgeneratorfunction(generator) and inspect.isasyncgenfunction(async_generator)

for talk, heard in ((lambda each: each.send("sent"), "sent"), (lambda each: each.throw(ValueError()), "thrown")):
    each = generator()
    assert next(each) == 1 and talk(each) == heard
    try:
        next(each)
    except StopIteration as stop:
        assert stop.value == 3

async def drive():
    for talk, heard in ((lambda each: each.asend("sent"), "sent"), (lambda each: each.athrow(ValueError()), "thrown")):
        each = async_generator()
        assert await each.__anext__() == 1
        assert await talk(each) == heard
        await each.aclose()
    assert [value async for value in async_generator()] == [1, None]
asyncio.run(drive())
assert closed == [True] * 3
""",
        collect=True,
    )
    names = [begin.name for begin, _ in itt_collector.ranges(itt_collector.read(log))]
    assert sorted(names) == ["agen"] * 3 + ["coroutine"] + ["delegating"] * 2 + ["plain"]


def test_many_ranges_take_no_memory(child: Child) -> None:
    """An Id of ittapi is 48 bytes that never come back, a name handed to the collector stays for good."""
    done = child(
        """
from verl_xpu_shim.profiling import ranges

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

def work(count):
    for _ in range(count):
        ranges.end(ranges.begin("stage"))

work(10_000)
before = resident()
work(300_000)
for step in range(20_000):
    ranges.end(ranges.begin(f"step {step}"))
print(resident() - before)
""",
        collect=True,
        ITT_LOG="",
    )
    assert int(done.stdout) < 4e6  # 300,000 Ids would be 14 MB, and 20,000 names some 6 MB here and in the collector


def test_nothing_is_done_where_nothing_collects(child: Child) -> None:
    done = child(
        """
import sys
from verl_xpu_shim.profiling import ranges
assert ranges.sinks() == () and ranges.begin("stage") is None
ranges.resume()
ranges.mark("step")
ranges.pause()
assert "ittapi" not in sys.modules
"""
    )
    assert done.stderr == ""


@pytest.mark.parametrize("variables", [{}, {"VERL_XPU_SHIM_MARKERS": "itt"}])
def test_missing_ittapi_is_said_once(child: Child, variables: dict[str, str]) -> None:
    done = child(
        """
import sys
sys.modules["ittapi"] = None  # as if it were not installed
from verl_xpu_shim.profiling import ranges
for _ in range(3):
    with ranges.Span("stage"):
        print("went on")
""",
        collect=True,
        **variables,
    )
    assert done.stdout == "went on\n" * 3
    assert done.stderr.count("pip install ittapi") == 1


def test_an_unknown_sink_is_said_once(child: Child) -> None:
    done = child(
        "from verl_xpu_shim.profiling import ranges; ranges.begin('a'); ranges.begin('b')",
        VERL_XPU_SHIM_MARKERS="perfetto,chrome",
    )
    assert done.stderr.splitlines() == [
        "VERL_XPU_SHIM_MARKERS: 'perfetto' is none of 'itt', 'chrome:DIRECTORY'; it is left out.",
        "VERL_XPU_SHIM_MARKERS: 'chrome' is none of 'itt', 'chrome:DIRECTORY'; it is left out.",
    ]


def test_the_probe_says_what_is_wrong(child: Child, log: Path) -> None:
    command = "import sys; from verl_xpu_shim.cli import main; sys.exit(main(['probe', 'markers', '--json']))"

    def probe(**options: object) -> subprocess.CompletedProcess[str]:
        return child(command, check=False, **options)

    nothing, missing, attached = probe(), probe(INTEL_LIBITTNOTIFY64="/nowhere.so"), probe(collect=True)
    assert (nothing.returncode, missing.returncode, attached.returncode) == (1, 1, 0)
    assert "nothing collects" in nothing.stdout
    assert "/nowhere.so, which isn't there" in missing.stdout
    names = [begin.name for begin, _ in itt_collector.ranges(itt_collector.read(log))]
    assert names.count("probe markers: many") > 1000
    assert {"probe markers", "probe markers: long", "probe markers: short"} < set(names)
