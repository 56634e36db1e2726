"""``verl-xpu-shim probe numa``: pin one process beside each device and read back from the kernel where it may run."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Final

from verl_xpu_shim.topology import numa
from verl_xpu_shim.topology import sysman

TIMEOUT: Final = 60.0
"""Seconds for one process."""


def main(arguments: Sequence[str] = ()) -> int:
    """Run the probe and return the exit status: 1 where a process isn't on its device's CPUs, or there is no device."""
    parser = argparse.ArgumentParser(prog="verl-xpu-shim probe numa", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--sysfs", type=Path, default=numa.SYSFS, help="where sysfs is mounted (/sys)")
    options = parser.parse_args(arguments)
    try:
        gpus = sysman.torch_gpus()
        error = None if gpus else "Level Zero Sysman lists no device that ZE_AFFINITY_MASK lets through"
    except (sysman.Unavailable, ValueError) as reason:
        gpus, error = [], str(reason)
    rows = [{"device": f"xpu:{ordinal}", **_probe(ordinal, options.sysfs)} for ordinal in range(len(gpus))]
    if options.json:
        print(json.dumps({"error": error, "devices": rows}, indent=2))
    else:
        for row in rows:
            print(f"{row['device']}: {_sentence(row)}")
        if error:
            print(f"Nothing to probe: {error}.")
    return int(error is not None or any(row["ok"] is False for row in rows))


def pinned_to(ordinal: int, sysfs: Path) -> dict[str, Any]:
    """Pin this very process beside ``xpu:ordinal`` and return what became of it; ``ok`` is None where it can't be."""
    try:
        place = numa.place(ordinal, sysfs)
    except numa.NotPinned as reason:
        return {"ok": None, "reason": str(reason)}
    numa.pin(place.cpus)
    threads = {task.name: _allowed(task) for task in Path("/proc/self/task").iterdir()}
    return {
        "ok": all(cpus <= place.cpus for cpus in threads.values()) and threads[str(os.getpid())] == place.cpus,
        "address": place.gpu.address,
        "tile": place.gpu.tile,
        "node": place.node,
        "cpus": numa.format_cpulist(place.cpus),
        "threads": len(threads),
        "found": sorted({numa.format_cpulist(cpus) for cpus in threads.values()}),
    }


def _allowed(task: Path) -> frozenset[int]:
    status = (task / "status").read_text()
    return numa.parse_cpulist(status.partition("Cpus_allowed_list:")[2].partition("\n")[0])


def _probe(ordinal: int, sysfs: Path) -> dict[str, Any]:
    """In a process of its own, so that one device's CPUs don't bound the next one's."""
    code = (
        "import json, pathlib, sys; from verl_xpu_shim.probes import numa;"
        "print(json.dumps(numa.pinned_to(int(sys.argv[1]), pathlib.Path(sys.argv[2]))))"
    )
    command = [sys.executable, "-c", code, str(ordinal), str(sysfs)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except subprocess.SubprocessError as error:
        last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1]
        return {"ok": False, "reason": last}
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


def _sentence(row: dict[str, Any]) -> str:
    if "found" not in row:
        return f"{'not pinned' if row['ok'] is None else 'failed'}: {row['reason']}"
    tile = "" if row["tile"] is None else f", tile {row['tile']}"
    where = f"{row['address']}{tile}, node {row['node']}"
    if row["ok"]:
        return f"{where}: all {row['threads']} thread(s) on CPUs {row['cpus']}"
    return f"{where}: wanted CPUs {row['cpus']}, the kernel says {' and '.join(row['found'])}"
