"""What an interpreter start costs with the shim in the environment, and with its rivals: ``python -c pass``.

    scripts/benchmark.py startup [--json FILE] [--python 3.11] [--rounds N] [--rivals NAME,... | --no-rivals]

`shim-off` is VERL_XPU_SHIM=0. `shim-no-pyc` is an installer that compiles nothing (uv) in an image that writes nothing
(PYTHONDONTWRITEBYTECODE=1): the bytecode of the start-up file came with the wheel. `shim-pyc-deleted` is that with
every .pyc taken away; `empty-no-pyc`, for comparison, a .pth that imports an empty module without one: what
builtins.compile() costs at its first call.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import _starts

from venvs import Venv

#: What is to be reached, in instructions over bare.
LIMITS = {"shim": 1_200_000, "shim-off": 600_000, "shim-no-pyc": 8_000_000}
NO_PYC = {"PYTHONDONTWRITEBYTECODE": "1"}


def main(arguments: list[str] | None = None) -> int:
    options = _starts.options("startup", __doc__, 60, arguments)
    with _starts.temporary() as folder:
        rows = measure(_starts.Starts(Path(folder), options.python), options.rivals, options.rounds)
    print(f"{'name':22} {'instructions':>13} {'over bare':>13} {'CPU ms over':>13}")
    for row in rows:
        over = f"{row['instructions_over_bare']:13,} {row['ms_over_bare']:13.2f}"
        print(f"{row['name']:22} {row['instructions']:13,} {over}")
    _starts.write_rows(rows, options.json)
    return _starts.judge("startup", rows, LIMITS)


def measure(starts: _starts.Starts, rivals: str, rounds: int) -> list[dict[str, object]]:
    uncompiled = starts.shim("shim-no-pyc", lambda venv: None, **NO_PYC)  # before any start of it could compile
    those = [
        starts.bare(),
        starts.shim(),
        starts.shim("shim-off", VERL_XPU_SHIM="0"),
        uncompiled,
        starts.shim("shim-pyc-deleted", _starts.delete_bytecode, **NO_PYC),
        starts.shim("empty-no-pyc", _only_an_empty_module, **NO_PYC),
        *(starts.rival(name) for name in rivals.split(",") if name),
    ]
    for start in those:
        _starts.cpu_milliseconds(start)  # compiles what may be compiled
    bare = {"1": _starts.instructions(starts.bare(**NO_PYC)), "": _starts.instructions(those[0])}
    milliseconds = _starts.milliseconds(those, rounds)
    rows: list[dict[str, object]] = []
    for start in those:
        count = _starts.instructions(start)
        over = count - bare[start.environment.get("PYTHONDONTWRITEBYTECODE", "")]
        ms = round(milliseconds[start.name], 3)
        row = {"benchmark": "startup", "name": start.name, "instructions": count}
        rows.append({**row, "instructions_over_bare": over, "ms_over_bare": ms})
    return rows


def _only_an_empty_module(venv: Venv) -> None:
    for path in venv.site.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (venv.site / "empty_module.py").touch()
    (venv.site / "empty.pth").write_text("import empty_module\n")
