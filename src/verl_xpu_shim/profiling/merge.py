"""Merges the range files of many processes and hosts into one trace for https://ui.perfetto.dev."""

from __future__ import annotations

import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from collections.abc import Iterator
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from pathlib import Path
from typing import Any

from verl_xpu_shim.profiling.chrome import SUFFIX


@dataclass
class Range:
    """One range of a process; times in microseconds."""

    name: str
    domain: str
    thread: int
    start: float
    stop: float
    args: dict[str, Any]


@dataclass
class Process:
    """What one file says of its process; times in microseconds, on its host's clock until :func:`merge` shifts them."""

    path: Path
    name: str = ""
    rank: int | None = None
    host: str = ""
    boot: str = ""
    wall_minus_monotonic_ns: int = 0
    threads: dict[int, str] = field(default_factory=dict)
    ranges: list[Range] = field(default_factory=list)
    marks: list[dict[str, Any]] = field(default_factory=list)
    #: Lines that are no event: the last one of a process killed in the middle of it.
    cut: int = 0


@dataclass(frozen=True)
class Merged:
    """A merged trace, and what there is to say about it."""

    trace: dict[str, Any]
    processes: int
    ranges: int
    #: Ranges that were still open when their process ended.
    unfinished: int
    cut: int


def merge(directory: Path) -> Merged:
    """Merge every range file in ``directory``.

    Each process becomes a named group of tracks, in the order of role and rank; ranges of one thread that overlap
    without nesting get tracks of their own.

    Raises:
        FileNotFoundError: there is no range file in ``directory``.
    """
    files = sorted(directory.glob(f"*{SUFFIX}"))
    if not files:
        raise FileNotFoundError(
            f"no *{SUFFIX} in {directory}: set VERL_XPU_SHIM_MARKERS=chrome:{directory} for every process of the run"
        )
    processes = [_read(path) for path in files]
    processes = [process for process in processes if process.ranges or process.marks]
    epoch_ns = _onto_one_clock(processes)
    processes.sort(
        key=lambda process: (process.name.partition(" rank ")[0], process.rank or 0, process.host, process.name)
    )
    starts = [each.start for process in processes for each in process.ranges]
    origin = min([*starts, *(mark["ts"] for process in processes for mark in process.marks)], default=0.0)
    hosts = {process.boot for process in processes}
    events = [
        event
        for number, process in enumerate(processes, 1)
        for event in _events(number, process, origin, name_host=len(hosts) > 1)
    ]
    ranges = [each for process in processes for each in process.ranges]
    return Merged(
        trace={
            "traceEvents": events,
            "displayTimeUnit": "ms",
            "otherData": {"producer": "verl-xpu-shim", "epoch_ns_at_zero": epoch_ns + round(origin * 1e3)},
        },
        processes=len(processes),
        ranges=len(ranges),
        unfinished=sum("unfinished" in each.args for each in ranges),
        cut=sum(process.cut for process in processes),
    )


def main(directory: Path, output: Path, *, as_json: bool = False) -> int:
    """``verl-xpu-shim trace --merge DIRECTORY -o OUTPUT``."""
    try:
        merged = merge(directory)
    except FileNotFoundError as error:
        print(f"verl-xpu-shim trace: {error}", file=sys.stderr)
        return 1
    output.write_text(json.dumps(merged.trace))
    if as_json:
        report = {each.name: getattr(merged, each.name) for each in fields(merged) if each.name != "trace"}
        print(json.dumps({"output": str(output), **report}))
        return 0
    print(f"{output}: {merged.ranges} ranges of {merged.processes} processes; open it at https://ui.perfetto.dev")
    if merged.unfinished:
        print(f"{merged.unfinished} of them were open when their process ended; they are marked 'unfinished'")
    if merged.cut:
        print(f"{merged.cut} lines were cut short and are left out")
    return 0


def _read(path: Path) -> Process:
    process, opened, last = Process(path), {}, 0.0
    for line in path.read_text("utf-8", "replace").splitlines()[1:]:
        try:
            event = json.loads(line.rstrip(","))
            phase, args = event["ph"], event.get("args", {})
        except (ValueError, TypeError, KeyError):
            process.cut += 1
            continue
        last = max(last, event.get("ts", 0.0))
        if phase == "b":
            opened[event["id"]] = event
        elif phase == "e" and (begin := opened.pop(event["id"], None)):
            process.ranges.append(_range(begin, event["ts"]))
        elif phase == "i":
            process.marks.append(event)
        elif phase == "M":
            _describe(process, event, args)
    for begin in opened.values():
        begin["args"]["unfinished"] = True
        process.ranges.append(_range(begin, last))
    return process


def _range(begin: dict[str, Any], stop: float) -> Range:
    return Range(begin["name"], begin["cat"], begin["tid"], begin["ts"], stop, begin["args"])


def _describe(process: Process, event: dict[str, Any], args: dict[str, Any]) -> None:
    match event["name"]:
        case "process_name":
            process.name, process.rank = args["name"], args["rank"]
        case "thread_name":
            process.threads[event["tid"]] = args["name"]
        case "clock":
            process.host, process.boot = args["host"], args["boot"]
            process.wall_minus_monotonic_ns = args["wall_minus_monotonic_ns"]


def _order(process: Process) -> tuple[str, int, str, str]:
    return process.name.partition(" rank ")[0], process.rank or 0, process.host, process.name


def _onto_one_clock(processes: Iterable[Process]) -> int:
    """Shift every time to the clock of one host, by one shift a host so that what its processes share stays exact.

    Returns that clock's distance to the epoch, in nanoseconds.
    """
    by_host: dict[str, list[Process]] = defaultdict(list)
    for process in processes:
        by_host[process.boot].append(process)
    offsets = {boot: min(process.wall_minus_monotonic_ns for process in group) for boot, group in by_host.items()}
    base = min(offsets.values(), default=0)
    for boot, group in by_host.items():
        shift = (offsets[boot] - base) / 1e3
        for process in group:
            for each in process.ranges:
                each.start, each.stop = each.start + shift, each.stop + shift
            for mark in process.marks:
                mark["ts"] += shift
    return base


def _events(number: int, process: Process, origin: float, *, name_host: bool) -> Iterator[dict[str, Any]]:
    """The events of one process, in Trace Event Format; ``number`` stands for its pid, which two hosts may share."""

    def metadata(name: str, tid: int, /, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": name, "pid": number, "tid": tid, "args": args}

    name = f"{process.name} on {process.host}" if name_host else process.name
    yield metadata("process_name", 0, name=name)
    yield metadata("process_sort_index", 0, sort_index=number)
    tracks = itertools.count(1)
    track_of: dict[int, int] = {}
    for thread, lanes in _lanes(process.ranges).items():
        title = process.threads.get(thread, f"thread {thread}")
        for index, lane in enumerate(lanes):
            track = next(tracks)
            track_of.setdefault(thread, track)
            yield metadata("thread_name", track, name=f"{title} (overlapping {index})" if index else title)
            yield metadata("thread_sort_index", track, sort_index=track)
            for each in lane:
                times = {"ts": round(each.start - origin, 3), "dur": round(each.stop - each.start, 3)}
                yield {
                    "ph": "X",
                    "name": each.name,
                    "cat": each.domain,
                    "pid": number,
                    "tid": track,
                    **times,
                    "args": each.args,
                }
    for mark in process.marks:
        track = track_of.get(mark["tid"], 0)
        yield {**mark, "pid": number, "tid": track, "ts": round(mark["ts"] - origin, 3)}


def _lanes(ranges: list[Range]) -> dict[int, list[list[Range]]]:
    """Thread -> lanes of ranges that nest: a range goes to the first lane where it is inside or after what is there."""
    threads: dict[int, list[_Lane]] = defaultdict(list)
    for each in sorted(ranges, key=lambda each: (each.start, -each.stop)):
        lanes = threads[each.thread]
        if not any(lane.take(each) for lane in lanes):
            lanes.append(_Lane())
            lanes[-1].take(each)
    return {thread: [lane.ranges for lane in lanes] for thread, lanes in threads.items()}


@dataclass
class _Lane:
    ranges: list[Range] = field(default_factory=list)
    _open: list[float] = field(default_factory=list)

    def take(self, each: Range) -> bool:
        while self._open and self._open[-1] <= each.start:
            self._open.pop()
        if self._open and each.stop > self._open[-1]:
            return False
        self.ranges.append(each)
        self._open.append(each.stop)
        return True
