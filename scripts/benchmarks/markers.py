"""What one range of verl's `marked_timer` costs: verl's own two, and ours with no collector, with one, and into a file.

    python scripts/benchmarks/markers.py [--json FILE] [--turns N] [--ranges N]

Needs verl, ittapi, nvtx and a C compiler; no device. Each turn of a case is a forked process; the cases take turns, and
the least CPU time of all turns counts. The collector is the tests' own: "counting" only counts calls, "logging" writes
each down. verl's nvtx runs as it does without Nsight: its ranges go nowhere.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

LOOPS, REPEATS = 10_000, 7
#: What is to be reached.
MAX_RATIO_TO_PLAIN, MAX_RATIO_TO_NVTX, MAX_GROWTH = 1.3, 1.0, 1 << 20

CASES = ("verl plain", "verl nvtx", "no collector", "collector counting", "collector logging", "chrome sink")
#: Cases whose memory is watched over many ranges, and the share of them: a file of ten million would take gigabytes.
WATCHED = {"no collector": 1.0, "collector counting": 1.0, "chrome sink": 0.1}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmark.py markers", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was measured")
    parser.add_argument("--turns", type=int, default=20, help="of each case (default 20)")
    parser.add_argument("--ranges", type=int, default=10_000_000, help="to watch memory over (default 10 million)")
    options = parser.parse_args(arguments)
    _prepare()
    with tempfile.TemporaryDirectory() as folder:
        turns = [{case: _run(case, 0, folder) for case in CASES} for _ in range(options.turns)]
        cost = {case: min(turn[case] for turn in turns) for case in CASES}
        growth = {case: _run(case, round(options.ranges * share), folder) for case, share in WATCHED.items()}
    verdicts = _judge(cost, growth)
    _show(cost, growth, verdicts, options.ranges)
    if options.json:
        names = ("verl", "ittapi", "nvtx")
        report = {
            "when": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
            "versions": {"python": sys.version.split()[0], **{name: version(name) for name in names}},
            "ns a range": cost,
            "bytes of growth": growth,
            "ranges": options.ranges,
            "verdicts": verdicts,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return int(not all(verdicts.values()))


def _prepare() -> None:
    """Import what every case needs, before they are forked: stock verl, which some then patch for themselves."""
    for name in [name for name in os.environ if name.startswith(("INTEL_LIBITT", "ITT_", "VERL_XPU_SHIM_MARKERS"))]:
        del os.environ[name]
    sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
    import itt_collector
    import xpu_sitecustomize

    itt_collector.library()  # built once, and taken away when this process ends
    xpu_sitecustomize.uninstall()
    import verl.utils.profiler.nvtx_profile  # noqa: F401


def _judge(cost: dict[str, float], growth: dict[str, int]) -> dict[str, bool]:
    return {
        f"no collector at most {MAX_RATIO_TO_PLAIN} x verl plain": cost["no collector"]
        <= MAX_RATIO_TO_PLAIN * cost["verl plain"],
        "a collector that counts no slower than verl nvtx": cost["collector counting"]
        <= MAX_RATIO_TO_NVTX * cost["verl nvtx"],
        "no growth of memory": max(growth.values()) < MAX_GROWTH,
    }


def _show(cost: dict[str, float], growth: dict[str, int], verdicts: dict[str, bool], ranges: int) -> None:
    print(f"{'':20} {'ns a range':>10} {'x plain':>8} {'x nvtx':>8} {'memory':>24}")
    for case, ns in cost.items():
        grown = f"{growth[case]:+,} B / {round(ranges * WATCHED[case]):,}" if case in growth else ""
        print(f"{case:20} {ns:10.0f} {ns / cost['verl plain']:8.2f} {ns / cost['verl nvtx']:8.2f} {grown:>24}")
    for text, reached in verdicts.items():
        print(f"{'reached' if reached else 'MISSED ':7}  {text}")


def _run(case: str, ranges: int, folder: str) -> Any:
    """One turn of a case in a process of its own: nanoseconds a range, or, of so many ranges, bytes of growth."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        result = pool.apply(_turn, (case, ranges, folder))
    for path in Path(folder).iterdir():
        path.unlink()
    return result


def _turn(case: str, ranges: int, folder: str) -> float:
    if case.startswith("collector"):
        import itt_collector

        os.environ["INTEL_LIBITTNOTIFY64"] = str(itt_collector.library())
    if case == "collector logging":
        os.environ["ITT_LOG"] = f"{folder}/itt.log"
    if case == "chrome sink":
        os.environ["VERL_XPU_SHIM_MARKERS"] = f"chrome:{folder}"
    markers = _markers(case)
    return _watch(ranges, *markers[1:]) if ranges else _time(markers[0])


def _markers(case: str) -> tuple[Any, Any, Any]:
    """`marked_timer`, `mark_start_range` and `mark_end_range` of the case."""
    from verl.utils.profiler import nvtx_profile
    from verl.utils.profiler import performance
    from verl.utils.profiler import profile

    from verl_xpu_shim.capability import Edit
    from verl_xpu_shim.capability import load

    timer, marks = performance, profile
    if case == "verl nvtx":
        timer = marks = nvtx_profile
    elif not case.startswith("verl"):
        for module in (performance, profile):  # whatever this host is
            load("profiler_markers").target(module.__name__).patch(module, Edit("profiler_markers"))
    return timer.marked_timer, marks.mark_start_range, marks.mark_end_range


def _time(marked_timer: Any) -> float:
    """Nanoseconds of one `with marked_timer(...)`, as a trainer uses it."""
    times: dict[str, float] = {}
    spent = []
    for _ in range(REPEATS):
        began = time.thread_time_ns()
        for _ in range(LOOPS):
            with marked_timer("stage", times, color="red"):
                pass
        spent.append(time.thread_time_ns() - began)
    return min(spent) / LOOPS


def _watch(ranges: int, start: Any, end: Any) -> int:
    """Bytes that `ranges` ranges leave behind. Not of `marked_timer`: verl's timer keeps every time it took (40 B)."""

    def use(count: int) -> None:
        for _ in range(count):
            end(start("stage", color="red"))

    use(LOOPS)
    before = _resident()
    use(ranges)
    return _resident() - before


def _resident() -> int:
    """Bytes of this process in memory (Linux, proc(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
