"""A real ITT collector for the tests, built from ``collector.c``, and what it wrote down."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Call:
    """One call that reached the collector; ``time`` in nanoseconds of the monotonic clock."""

    time: int
    pid: int
    tid: int
    call: str
    domain: str
    name: str
    id: str


@functools.cache
def library() -> Path:
    """Build the collector and return its path; it lives as long as this process."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler, "a C compiler is needed to build the ITT collector of the tests"
    folder = tempfile.mkdtemp(prefix="itt-collector-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    target = Path(folder) / "libitt_log.so"
    source = Path(__file__).with_name("collector.c")
    flags = ["-O2", "-Wall", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run([compiler, *flags, "-o", target, source, "-lpthread"], check=True)
    return target


def environment(log: Path, *, start_paused: bool = False) -> dict[str, str]:
    """The variables that attach the collector to a process."""
    variables = {"INTEL_LIBITTNOTIFY64": str(library()), "ITT_LOG": str(log)}
    return {**variables, "ITT_START_PAUSED": "1"} if start_paused else variables


def read(log: Path) -> list[Call]:
    """What the collector received, in the order of time."""
    lines = [line.split("\t") for line in log.read_text().splitlines()] if log.exists() else []
    calls = [Call(int(time), int(pid), int(tid), *rest) for time, pid, tid, *rest in lines]
    return sorted(calls, key=lambda call: call.time)


def ranges(calls: list[Call]) -> list[tuple[Call, Call]]:
    """The begin and the end of every task.

    Raises:
        AssertionError: a task has no end, an end has no beginning, or an id is open twice.
    """
    opened: dict[tuple[int, str], Call] = {}
    pairs = []
    for call in calls:
        key = call.pid, call.id
        if call.call == "begin":
            assert key not in opened, f"{call} begins while {opened[key]} is open"
            opened[key] = call
        elif call.call in ("end", "unmatched_end"):
            assert key in opened, f"{call} ends what nobody began"
            pairs.append((opened.pop(key), call))
    assert not opened, f"never ended: {list(opened.values())}"
    return pairs
