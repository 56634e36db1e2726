"""Virtual environments to start Python in, with the shim and with its rivals, and two ways to measure a start."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path

from venvs import Venv
from venvs import build_wheel
from venvs import clean_environment
from venvs import copy_source
from venvs import execute
from venvs import make_venv
from venvs import unpack

#: A module that nobody has: what the rivals' hooks wait for, as ours wait for verl.
TARGET = "verl"


@dataclass(frozen=True)
class Rival:
    """Another start-up package: what to install, how it comes in."""

    requirements: tuple[str, ...]
    pth: str = ""
    path: str = ""
    environment: dict[str, str] = field(default_factory=dict)


#: Each as its documentation starts it; `path` is the folder that its command puts on PYTHONPATH.
RIVALS = {
    "distutils-precedence": Rival(("setuptools==84.2.1",)),
    "importpatch": Rival(("importpatch==0.2.1",)),
    "autowrapt": Rival(("autowrapt==2.0.0",), environment={"AUTOWRAPT_BOOTSTRAP": "nobody"}),
    "wrapt": Rival(("wrapt==2.5.2",), pth=f"import wrapt; wrapt.register_post_import_hook(print, {TARGET!r})"),
    "opentelemetry": Rival(
        ("opentelemetry-distro==0.66b2",), path="opentelemetry/instrumentation/auto_instrumentation"
    ),
    "ddtrace": Rival(("ddtrace==4.16.0",), path="ddtrace/bootstrap", environment={"DD_TRACE_ENABLED": "true"}),
}


@dataclass(frozen=True)
class Start:
    """A way to start Python."""

    name: str
    venv: Venv
    environment: dict[str, str] = field(default_factory=dict)

    def command(self, *arguments: str) -> list[str]:
        return [str(self.venv.python), *(arguments or ("-c", "pass"))]

    @property
    def env(self) -> dict[str, str]:
        return clean_environment(PYTHONHASHSEED="0", **self.environment)


class Starts:
    """Makes the virtual environments below a folder."""

    def __init__(self, folder: Path, version: str) -> None:
        self.folder = folder
        self.version = version

    def bare(self, **environment: str) -> Start:
        return Start("bare", self._venv("bare"), environment)

    def shim(self, name: str = "shim", change: Callable[[Venv], None] | None = None, **environment: str) -> Start:
        venv = self._venv("shim" if change is None else name)
        if not (venv.site / "xpu_sitecustomize").exists():
            unpack(self._wheel, venv.site)
        if change is not None:
            change(venv)
        return Start(name, venv, environment)

    def rival(self, name: str) -> Start:
        rival = RIVALS[name]
        venv = self._venv(name)
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q", "--python", venv.python, "install")
        execute(*pip, *rival.requirements, cwd=self.folder, timeout=900)
        if rival.pth:
            (venv.site / "rival.pth").write_text(rival.pth + "\n")
        path = {"PYTHONPATH": str(venv.site / rival.path)} if rival.path else {}
        return Start(name, venv, rival.environment | path)

    def _venv(self, name: str) -> Venv:
        at = self.folder / name
        return Venv(at) if at.exists() else make_venv(at, self.version)

    @functools.cached_property
    def _wheel(self) -> Path:
        (self.folder / "source").mkdir()
        return build_wheel(copy_source(self.folder / "source"), self.folder)


def delete_bytecode(venv: Venv) -> None:
    for folder in venv.site.rglob("__pycache__"):
        shutil.rmtree(folder)


def instructions(start: Start, *arguments: str) -> int:
    """Count instructions with callgrind; exact but for the length of paths and the like."""
    if shutil.which("valgrind") is None:
        sys.exit(
            "benchmark: valgrind is missing; instructions are counted by its callgrind (Debian: apt install valgrind)"
        )
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", *start.command(*arguments)]
    done = subprocess.run(command, env=start.env, capture_output=True, text=True, check=False)
    found = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or not found:
        sys.exit(f"benchmark: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return int(found.group(1))


def milliseconds(starts: list[Start], rounds: int, *arguments: str) -> dict[str, float]:
    """Run the starts in turns; return the median over the turns of the CPU time that each took more than the first."""
    differences: dict[str, list[float]] = {start.name: [] for start in starts}
    for _ in range(rounds):
        times = {start.name: cpu_milliseconds(start, *arguments) for start in starts}
        for name, took in times.items():
            differences[name].append(took - times[starts[0].name])
    return {name: statistics.median(each) for name, each in differences.items()}


def cpu_milliseconds(start: Start, *arguments: str) -> float:
    """Return the CPU time of one process, which other jobs on the machine disturb less than they do the clock."""
    process = subprocess.Popen(
        start.command(*arguments), env=start.env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, process.returncode, usage = os.wait4(process.pid, 0)
    return (usage.ru_utime + usage.ru_stime) * 1e3


def options(name: str, documentation: str | None, rounds: int, arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"benchmark.py {name}", description=(documentation or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows of the table")
    parser.add_argument("--python", default="3.11", metavar="VERSION")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of the paired timing (default {rounds})")
    parser.add_argument("--rivals", default=",".join(RIVALS), help="comma list (default: all)")
    parser.add_argument("--no-rivals", action="store_const", const="", dest="rivals")
    return parser.parse_args(arguments)


def judge(name: str, rows: list[dict[str, object]], limits: dict[str, int]) -> int:
    """Name the rows that cost more instructions over bare than their limit; exit status 1 where there are any."""
    missed = [row for row in rows if row["instructions_over_bare"] > limits.get(str(row["name"]), sys.maxsize)]
    for row in missed:
        limit = limits[str(row["name"])]
        print(f"{name}: {row['name']} costs more than {limit:,} instructions over bare", file=sys.stderr)
    return 1 if missed else 0


def write_rows(rows: list[dict[str, object]], file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n")


def temporary() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="benchmark-")
