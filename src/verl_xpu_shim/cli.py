"""``verl-xpu-shim``: exit status 0 all well, 1 something is wrong (and it says what to do), 2 bad usage."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from typing import Final

#: probe -> the module whose ``main(arguments)`` runs it and returns the exit status.
PROBES: Final = {
    "all-reduce": "verl_xpu_shim.probes.all_reduce",
    "numa": "verl_xpu_shim.probes.numa",
    "markers": "verl_xpu_shim.probes.markers",
    "replay-sentinel": "verl_xpu_shim.probes.replay_sentinel",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    options, rest = _parser().parse_known_args(arguments)
    if rest and options.run is not _probe:
        _parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.rest = rest
    return int(options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-xpu-shim", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        return sub

    command("status", _status, "versions, how the shim got in, and the state of each capability")
    check = command("check", _check, "hold the installed verl, vllm and torch against the contracts, from files alone")
    check.add_argument("--site", type=Path, help="a site-packages folder to look into instead")
    doctor = command("doctor", _doctor, "the environment: devices, driver, libraries, NUMA, Ray")
    doctor.add_argument("--ray", metavar="ADDRESS", help="also one task on each node of this Ray cluster")
    trace = command("trace", _trace, "who loaded what, when: the trace logs of many processes as one table")
    trace.add_argument("files", nargs="*", type=Path, metavar="FILE")
    trace.add_argument("--html", type=Path, metavar="OUT", help="write one self-contained page instead")
    trace.add_argument("--merge", type=Path, metavar="DIR", help="merge the marker files of a folder for Perfetto")
    trace.add_argument("-o", "--output", type=Path, metavar="OUT", help="where --merge writes")
    probe = command("probe", _probe, "a check on the real devices, for a bug report")
    probe.add_argument("probe", choices=PROBES)
    command("path", _path, "the folder for PYTHONPATH")
    return parser


def _status(options: argparse.Namespace) -> int:
    from verl_xpu_shim import status

    rows = status.check()
    verdicts: dict[str, set[str]] = {}
    for row in rows:
        verdicts.setdefault(row["capability"], set()).add(row["verdict"])
    table, versions, entered = status.table(), status.versions(), status.how_it_got_in()
    if options.json:
        report = {"versions": versions, "entered": entered, "capabilities": table, "contracts": rows}
        print(json.dumps(report, indent=2))
    else:
        for name, version in versions.items():
            print(f"{name:16} {version or 'not installed'}")
        print(f"\nThe shim is {'in this process, by way of ' + entered if entered else 'not in this process'}.")
        if sys.version_info >= (3, 18):
            print('Python 3.18 ignores import lines in .pth files: use PYTHONPATH="$(verl-xpu-shim path)".')
        print()
        for name, row in table.items():
            state = "enabled" if row["enabled"] else "disabled"
            contract = (
                "drifted" if "drift" in verdicts[name] else "held" if "held" in verdicts[name] else "no target here"
            )
            print(f"{name:18} {row['kind']:9} {state:9} contract {contract}")
    return int(not entered or any(row["verdict"] == "drift" for row in rows))


def _check(options: argparse.Namespace) -> int:
    from verl_xpu_shim import status

    if options.site and not options.site.is_dir():
        print(f"verl-xpu-shim check: {options.site} is no folder", file=sys.stderr)
        return 2
    rows = status.check(options.site)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        for name, version in status.versions(options.site).items():
            if version:
                print(f"{name} {version}")
        for row in rows:
            print(f"{row['verdict']:7} {row['capability']:18} {row['module']}")
            for each in row.get("drift", ()):
                print(f"        expected {each['expected']}, found {each['found']}")
    drifted = [row for row in rows if row["verdict"] == "drift"]
    if drifted:
        print(
            f"{len(drifted)} contract(s) drifted: these versions are not supported by this verl-xpu-shim. "
            "Upgrade verl-xpu-shim, or go back to versions that its README lists.",
            file=sys.stderr,
        )
    return int(bool(drifted))


def _doctor(options: argparse.Namespace) -> int:
    doctor = importlib.import_module("verl_xpu_shim.doctor")
    return int(doctor.main(ray=options.ray, as_json=options.json))


def _trace(options: argparse.Namespace) -> int:
    if options.merge:
        merge = importlib.import_module("verl_xpu_shim.profiling.merge")
        return int(merge.main(options.merge, options.output or Path("trace.json"), as_json=options.json))
    if not options.files:
        print("verl-xpu-shim trace: name at least one trace log, or --merge DIR", file=sys.stderr)
        return 2
    report = importlib.import_module("verl_xpu_shim.trace_report")
    return int(report.main(options.files, html=options.html, as_json=options.json))


def _probe(options: argparse.Namespace) -> int:
    rest = [*options.rest, *(["--json"] if options.json else [])]
    return int(importlib.import_module(PROBES[options.probe]).main(rest))


def _path(options: argparse.Namespace) -> int:
    import xpu_sitecustomize

    folder = Path(xpu_sitecustomize.__file__).resolve().parent / "sitecustomize"
    print(json.dumps(str(folder)) if options.json else folder)
    return 0
