"""What the finder costs each import: 2,000 small modules with cached .pyc, the mean of one.

    scripts/benchmark.py imports [--json FILE] [--python 3.11] [--rounds N] [--rivals NAME,... | --no-rivals]

`shim` and the rivals wait for one module that is not among them; in `shim-armed` the whole watchlist is armed, too.
`shim-target` and `wrapt-target` have a hook that does nothing on every one of the 2,000.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import _starts

MODULES = 2_000
#: What is to be reached, in instructions over bare for one import.
LIMITS = {"shim": 5_200, "shim-armed": 5_200, "shim-target": 25_000}
#: name -> (start, what it does before the imports). NAMES stands for the names of the modules.
SETUPS = {
    "shim-armed": ("shim", "import xpu_sitecustomize.finder; xpu_sitecustomize.finder.arm()"),
    "shim-target": ("shim", "from xpu_sitecustomize import watch\nfor name in NAMES: watch(name, bool)"),
    "wrapt-target": (
        "wrapt",
        "from wrapt import register_post_import_hook\nfor name in NAMES: register_post_import_hook(bool, name)",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    options = _starts.options("imports", __doc__, 11, arguments)
    with _starts.temporary() as folder:
        rows = measure(_starts.Starts(Path(folder), options.python), options.rivals, options.rounds, Path(folder))
    print(f"{'name':22} {'instructions':>13} {'over bare':>13} {'CPU us over':>13}   each of {MODULES:,} imports")
    for row in rows:
        over = f"{row['instructions_over_bare']:13,} {row['ms_over_bare'] * 1e3:13.2f}"
        print(f"{row['name']:22} {row['instructions']:13,} {over}")
    _starts.write_rows(rows, options.json)
    return _starts.judge("imports", rows, LIMITS)


def measure(starts: _starts.Starts, rivals: str, rounds: int, folder: Path) -> list[dict[str, object]]:
    modules = folder / "modules"
    modules.mkdir()
    for number in range(MODULES):
        (modules / f"small_{number}.py").write_text(f"X = {number}\n")
    made = {start.name: start for start in (starts.bare(), starts.shim())}
    made |= {name: starts.rival(name) for name in rivals.split(",") if name}
    for name, (base, _) in SETUPS.items():
        if base in made:
            made[name] = _starts.Start(name, made[base].venv, made[base].environment)
    scripts = {name: _script(modules, SETUPS.get(name, ("", ""))[1]) for name in made}
    for name, start in made.items():
        _starts.cpu_milliseconds(start, "-c", scripts[name], str(MODULES))  # compiles
    costs, milliseconds = {}, {}
    bare = made["bare"]
    for name, start in made.items():
        loaded, idle = (_starts.instructions(start, "-c", scripts[name], count) for count in (str(MODULES), "0"))
        costs[name] = round((loaded - idle) / MODULES)
        if name != "bare":
            milliseconds[name] = _difference(bare, start, scripts["bare"], scripts[name], rounds) / MODULES
    return [
        {
            "benchmark": "imports",
            "name": name,
            "instructions": cost,
            "instructions_over_bare": cost - costs["bare"],
            "ms_over_bare": round(milliseconds.get(name, 0.0), 6),
        }
        for name, cost in costs.items()
    ]


def _script(modules: Path, setup: str) -> str:
    return f"""
import sys, typing
sys.path.insert(0, {str(modules)!r})
NAMES = ['small_%d' % n for n in range({MODULES})]
try: import no_such_module  # from here on every folder of the path is known
except ImportError: pass
{setup}
for name in NAMES[: int(sys.argv[1])]: __import__(name)
"""


def _difference(bare: _starts.Start, other: _starts.Start, script: str, others: str, rounds: int) -> float:
    """Return the median over rounds of how much more CPU time the imports take than bare, starts subtracted, in ms."""
    found = []
    for _ in range(rounds):
        took = []
        for start, code in ((other, others), (bare, script)):
            loaded, idle = (_starts.cpu_milliseconds(start, "-c", code, count) for count in (str(MODULES), "0"))
            took.append(loaded - idle)
        found.append(took[0] - took[1])
    return statistics.median(found)
