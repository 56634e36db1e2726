#!/usr/bin/env python
"""Measure what is said to be cheap.

    scripts/benchmark.py NAME... [--json FILE] [options of that benchmark]

Each benchmark is a file of scripts/benchmarks/ with a function main(arguments) -> exit status, which prints a table
and, with --json, writes what it measured. Of several, FILE gets the rows of all (or, where one writes no rows, a report
by name). The options of one are shown by NAME --help.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
NAMES = sorted(file.stem for file in (HERE / "benchmarks").glob("[!_]*.py"))


def main(arguments: list[str]) -> int:
    names = [each for each in arguments if each in NAMES]
    options = [each for each in arguments if each not in NAMES]
    if not names:
        print(f"{__doc__}\nBenchmarks here: {', '.join(NAMES)}")
        return 0 if "--help" in options else 2
    sys.path[:0] = [str(HERE / "benchmarks"), str(HERE.parent / "tests")]
    if len(names) == 1:
        return run(names[0], options)
    report = None
    if "--json" in options:
        at = options.index("--json")
        report = Path(options[at + 1])
        del options[at : at + 2]
    status, found = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            print(f"{name}:")
            file = Path(folder) / f"{name}.json"
            status |= run(name, [*options, "--json", str(file)])
            found[name] = json.loads(file.read_text())
    if report:
        rows = all(isinstance(each, list) for each in found.values())
        content = [row for each in found.values() for row in each] if rows else found
        report.write_text(json.dumps(content, indent=1) + "\n")
    return status


def run(name: str, options: list[str]) -> int:
    status: int = importlib.import_module(name).main(options)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
