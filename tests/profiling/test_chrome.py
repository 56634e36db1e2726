"""The files of the Chrome sink, written by processes of their own, and what merging makes of them."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from verl_xpu_shim.profiling.merge import main
from verl_xpu_shim.profiling.merge import merge

from .conftest import Child


def tracks(trace: dict[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Process name -> track name -> names of its ranges, in order."""
    processes, threads = {}, {}
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["pid"], event["tid"]] = event["args"]["name"]
    found: dict[str, dict[str, list[str]]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            process = re.sub(r"pid \d+", "pid", processes[event["pid"]])
            found.setdefault(process, {}).setdefault(threads[event["pid"], event["tid"]], []).append(event["name"])
    return found


def test_a_file_is_a_trace_by_itself(child: Child, tmp_path: Path) -> None:
    child(
        """
from verl_xpu_shim.profiling import ranges
with ranges.Span('a "name"', color="red", category="update", detail="3 requests"):
    ranges.mark("step", number=1)
""",
        VERL_XPU_SHIM_MARKERS=f"chrome:{tmp_path / 'made'}",
        RANK="3",
    )
    (file,) = (tmp_path / "made").iterdir()
    events = json.loads(file.read_text().rstrip().rstrip(",") + "]")  # what every reader of the format does itself
    by_phase = {event["ph"]: event for event in events}
    assert by_phase["b"]["name"] == by_phase["e"]["name"] == 'a "name"'
    assert by_phase["b"]["id"] == by_phase["e"]["id"]
    assert by_phase["b"]["args"] == {"color": "red", "category": "update", "detail": "3 requests"}
    assert (by_phase["i"]["name"], by_phase["i"]["args"]) == ("step", {"number": 1})
    assert by_phase["b"]["ts"] <= by_phase["i"]["ts"] <= by_phase["e"]["ts"]
    assert any(event["name"] == "process_name" and " rank 3 " in event["args"]["name"] for event in events)


def test_a_killed_process_leaves_a_readable_file(tmp_path: Path) -> None:
    code = """
import os, signal
from verl_xpu_shim.profiling import ranges
with ranges.Span("done"):
    pass
with ranges.Span("open"):
    with ranges.Span("also done"):
        pass
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run(
        [sys.executable, "-c", code], env={"VERL_XPU_SHIM_MARKERS": f"chrome:{tmp_path}"}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    merged = merge(tmp_path)
    assert (merged.ranges, merged.unfinished, merged.cut) == (3, 1, 0)
    ((names,),) = [list(each.values()) for each in tracks(merged.trace).values()]
    assert names == ["done", "open", "also done"]
    by_name = {event["name"]: event for event in merged.trace["traceEvents"] if event["ph"] == "X"}
    assert by_name["open"]["args"] == {"unfinished": True}
    inner = by_name["also done"]
    assert by_name["open"]["dur"] + 0.01 >= inner["ts"] + inner["dur"] - by_name["open"]["ts"]

    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-20])  # and in the middle of a line
    cut = merge(tmp_path)
    assert (cut.ranges, cut.unfinished, cut.cut) == (3, 2, 1)


def test_overlapping_coroutines_get_tracks_on_which_they_nest(child: Child, tmp_path: Path) -> None:
    child(
        """
import asyncio
from verl_xpu_shim.profiling import ranges

async def stage(name, start, seconds):
    await asyncio.sleep(start)
    with ranges.Span(name):
        await asyncio.sleep(seconds)

async def run():
    with ranges.Span("step"):
        await asyncio.gather(stage("first", 0, 0.04), stage("second", 0.02, 0.04), stage("third", 0.05, 0.04))

asyncio.run(run())
""",
        VERL_XPU_SHIM_MARKERS=f"chrome:{tmp_path}",
    )
    merged = merge(tmp_path)
    (process,) = tracks(merged.trace).values()
    assert process == {"MainThread": ["step", "first", "third"], "MainThread (overlapping 1)": ["second"]}
    by_track: dict[int, list[tuple[float, float]]] = {}
    for event in merged.trace["traceEvents"]:
        if event["ph"] == "X":
            by_track.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    for spans in by_track.values():
        for start, stop in spans:
            assert all(stop <= a or b <= start or a <= start <= stop <= b or start <= a <= b <= stop for a, b in spans)


def test_processes_are_merged_on_one_clock_by_role_and_rank(child: Child, tmp_path: Path) -> None:
    stamps = []
    for role, rank in (("actor", 10), ("actor", 2), ("server", 0)):
        said = child(
            f"""
import time
from verl_xpu_shim.profiling import ranges
ranges.describe({role!r}, {rank})
with ranges.Span("stage"):
    print(time.time_ns())
""",
            VERL_XPU_SHIM_MARKERS=f"chrome:{tmp_path}",
        )
        stamps.append(int(said.stdout))
    _pretend_another_host(next(path for path in tmp_path.iterdir() if "actor rank 2" in path.read_text()))

    merged = merge(tmp_path)
    names = list(tracks(merged.trace))
    assert [re.sub(r" on .*", "", name) for name in names] == [
        "actor rank 2 (pid)",
        "actor rank 10 (pid)",
        "server rank 0 (pid)",
    ]
    assert names[0].endswith(" on elsewhere")
    zero = merged.trace["otherData"]["epoch_ns_at_zero"]
    events = sorted(
        (event for event in merged.trace["traceEvents"] if event["ph"] == "X"), key=lambda event: event["ts"]
    )
    for stamp, event in zip(stamps, events, strict=True):  # as long as nobody turns the clock back, within a range
        start = zero + event["ts"] * 1e3
        assert start - 2e6 <= stamp <= start + event["dur"] * 1e3 + 2e6


def _pretend_another_host(path: Path) -> None:
    """Rewrite a file as a host would write it that booted at another moment: another monotonic clock, the same time."""
    shift_us = 123_456_789.0
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith("{"):
            event = json.loads(line.rstrip(","))
            if event["name"] == "clock":
                event["args"].update(host="elsewhere", boot="another")
                event["args"]["wall_minus_monotonic_ns"] -= int(shift_us * 1e3)
            if "ts" in event:
                event["ts"] += shift_us
            line = json.dumps(event) + ","
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")


def test_a_folder_that_cannot_be_written_stops_nobody(child: Child, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = child(
        """
from verl_xpu_shim.profiling import ranges
for _ in range(3):
    with ranges.Span("stage"):
        print("went on")
""",
        VERL_XPU_SHIM_MARKERS=f"chrome:{tmp_path / 'file' / 'folder'}",
    )
    assert done.stdout == "went on\n" * 3
    (line,) = done.stderr.splitlines()
    assert "can't be written" in line
    assert "The run goes on" in line


def test_a_process_is_named_by_what_ray_runs_in_it(child: Child, tmp_path: Path) -> None:
    """A file opened before Ray is initialised leaves it so."""
    child(
        """
import ray
from verl_xpu_shim.profiling import ranges

def use():
    with ranges.Span("stage"):
        pass

class Actor:
    def go(self):
        use()

use()
assert not ray.is_initialized()
ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
named, unnamed = ray.remote(Actor).options(name="trainer").remote(), ray.remote(Actor).remote()
ray.get([named.go.remote(), unnamed.go.remote(), ray.remote(use).remote()])
""",
        VERL_XPU_SHIM_MARKERS=f"chrome:{tmp_path}",
    )
    assert list(tracks(merge(tmp_path).trace)) == ["-c (pid)", "Actor (pid)", "trainer (pid)", "use (pid)"]


def test_the_command_merges(child: Child, tmp_path: Path) -> None:
    markers, out = tmp_path / "markers", tmp_path / "trace.json"
    child(
        "from verl_xpu_shim.profiling import ranges\nwith ranges.Span('stage'): pass",
        VERL_XPU_SHIM_MARKERS=f"chrome:{markers}",
    )
    arguments = ["trace", "--merge", str(markers), "-o", str(out)]
    command = f"import sys; from verl_xpu_shim.cli import main; sys.exit(main({arguments}))"
    assert "1 ranges of 1 processes" in child(command).stdout
    assert list(tracks(json.loads(out.read_text())).values()) == [{"MainThread": ["stage"]}]


def test_merging_an_empty_folder_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(tmp_path, tmp_path / "trace.json") == 1
    said = capsys.readouterr().err
    assert f"VERL_XPU_SHIM_MARKERS=chrome:{tmp_path}" in said
    assert not (tmp_path / "trace.json").exists()
