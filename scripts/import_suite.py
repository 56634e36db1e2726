#!/usr/bin/env python
"""CPython's own import tests: bare, with the shim installed, and with every module hooked. All three must agree.

    scripts/import_suite.py [--python 3.12]... [--json FILE]

Prints one line for each interpreter (default: each of 3.10 to 3.13 on this machine) and run; exits 1 where a test that
passes bare does not pass with the shim, or the other way round. Each run is a virtual environment of its own with one
.pth in it (test_site skips a test for any), the bare one's empty. What differs is run a second time, alone, since some
of these tests depend on time.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from venvs import VERSIONS
from venvs import Venv
from venvs import build_wheel
from venvs import clean_environment
from venvs import copy_source
from venvs import interpreter
from venvs import make_venv
from venvs import unpack

TESTS = [
    "test_importlib",
    "test_import",
    "test_runpy",
    "test_pkgutil",
    "test_zipimport",
    "test_zipimport_support",
    "test_module",
    "test_site",
    "test_threaded_import",
    "test_modulefinder",
    "test_cmd_line_script",
    "test_zipapp",
    "test_frozen",
    "test_inspect",
    "test_warnings",
]
RUNS = ("bare", "shim", "every module hooked")

#: Has the finder answer for every module, with a hook that does nothing.
STRESS = """
import sys, xpu_sitecustomize.finder as finder
def hook(module): pass
class Everything(dict):
    def __contains__(self, name): return True
    def __missing__(self, name): return [hook]
sys.modules['_xpu_sitecustomize'].watched = finder.watched = Everything()
"""

Outcomes = dict[str, str]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="append", metavar="VERSION", help="such as 3.12; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows of the table, and what differs")
    options = parser.parse_args(arguments)
    rows, same = [], True
    print(f"{'python':8} {'run':20} {'pass':>6} {'fail':>6} {'skip':>6}  differs from bare")
    for version in options.python or VERSIONS:
        if interpreter(version) is None:
            print(f"{version:8} not on this machine")
            same = same and not options.python
            continue
        with tempfile.TemporaryDirectory(prefix="import-suite-") as folder:
            for row in suite(version, Path(folder)):
                rows.append(row)
                same = same and not row["differs"]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if same else 1


def suite(version: str, folder: Path) -> list[dict[str, object]]:
    """Run the tests three times and print a line for each."""
    tests = shipped(version)
    if missing := [test for test in TESTS if test not in tests]:
        print(f"{version:8} ships no {', '.join(missing)}")
    pythons = {run: environment(run, version, folder).python for run in RUNS}
    outcomes = {run: outcome(python, tests, folder) for run, python in pythons.items()}
    rows: list[dict[str, object]] = []
    for run, found in outcomes.items():
        differs = difference(outcomes["bare"], found)
        if differs:
            again = sorted({name.partition(":")[0] for name in differs})
            differs = difference(outcome(pythons["bare"], again, folder), outcome(pythons[run], again, folder))
        counts = [list(found.values()).count(status) for status in ("pass", "fail", "skip")]
        print(f"{version:8} {run:20} {counts[0]:6} {counts[1]:6} {counts[2]:6}  {len(differs)}", flush=True)
        for name, (before, after) in differs.items():
            print(f"{'':30}{name}: {before} -> {after}")
        counted = dict(zip(("pass", "fail", "skip"), counts, strict=True))
        rows.append({"python": version, "run": run, **counted, "differs": differs})
    return rows


def environment(run: str, version: str, folder: Path) -> Venv:
    """Make the virtual environment of a run."""
    venv = make_venv(folder / run.replace(" ", "-"), version)
    if run == "bare":
        (venv.site / "empty.pth").write_text("# nothing\n")
    else:
        unpack(wheel(), venv.site)
    if run == "every module hooked":
        (venv.site / "zz_stress.py").write_text(STRESS)
        with (venv.site / "xpu_sitecustomize.pth").open("a") as file:
            file.write("import zz_stress\n")
    return venv


@functools.cache
def wheel() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="import-suite-wheel-"))
    atexit.register(shutil.rmtree, folder)
    (folder / "source").mkdir()
    return build_wheel(copy_source(folder / "source"), folder)


def shipped(version: str) -> list[str]:
    code = "import importlib.util as u, sys; print(*(n for n in sys.argv[1:] if u.find_spec('test.' + n)))"
    command = [interpreter(version) or "", "-c", code, *TESTS]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=clean_environment()).stdout.split()


def outcome(python: Path, tests: list[str], folder: Path) -> Outcomes:
    """Run test files; return what became of each test, "file:class.name" -> pass, fail or skip."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    command = [python, "-m", "test", "-j2", "--timeout", "300", "--junit-xml", report, *tests]
    with tempfile.TemporaryDirectory() as cwd:
        done = subprocess.run(command, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False)
    if not report.exists():
        sys.exit(f"import_suite: {python} -m test left no report:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    found: Outcomes = {}
    for each in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in each}
        status = "fail" if kinds & {"failure", "error"} else "skip" if "skipped" in kinds else "pass"
        name = (each.get("name") or "").removeprefix("test.")
        found[f"{name.partition('.')[0]}:{name.partition('.')[2]}"] = status
    return found


def difference(before: Outcomes, after: Outcomes) -> dict[str, tuple[str, str]]:
    names = sorted(before.keys() | after.keys())
    pairs = {name: (before.get(name, "absent"), after.get(name, "absent")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


if __name__ == "__main__":
    sys.exit(main())
