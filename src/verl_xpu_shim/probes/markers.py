"""``verl-xpu-shim probe markers``: do ranges reach a collector from this environment, and what does one cost?"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Final

import importlib_metadata

from verl_xpu_shim.profiling import itt
from verl_xpu_shim.profiling import ranges

REPEAT: Final = 10_000


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="verl-xpu-shim probe markers", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    report = probe()
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        for name, value in report.items():
            print(f"{name:20} {value}")
    return int(bool(report["wrong"]))


def probe() -> dict[str, Any]:
    """Send ranges that nest, that overlap in coroutines and that are many; report where they went."""
    library = itt.collector()
    ranges.resume()
    asyncio.run(_overlapping())
    began = time.perf_counter_ns()
    for _ in range(REPEAT):
        ranges.end(ranges.begin("probe markers: many"))
    cost = (time.perf_counter_ns() - began) / REPEAT
    ranges.pause()
    return {
        "ittapi": importlib_metadata.version("ittapi") if itt.available() else None,
        "collector": library,
        "sinks": [type(sink).__name__ for sink in ranges.sinks()],
        "ns a range": round(cost),
        "wrong": _wrong(library),
    }


async def _overlapping() -> None:
    async def stage(name: str, seconds: float) -> None:
        with ranges.Span(f"probe markers: {name}"):
            await asyncio.sleep(seconds)

    with ranges.Span("probe markers"):
        await asyncio.gather(stage("long", 0.02), stage("short", 0.01))


def _wrong(library: str | None) -> str | None:
    if library and not itt.available():
        return itt.MISSING
    if library and not Path(library).is_file():
        return f"INTEL_LIBITTNOTIFY64 names {library}, which isn't there: ITT stays silent"
    if not ranges.sinks():
        return (
            f"nothing collects: run this under 'vtune -collect hotspots --', or set {ranges.VARIABLE}=chrome:DIRECTORY"
        )
    return None
