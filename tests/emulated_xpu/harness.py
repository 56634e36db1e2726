"""Runs tests on the emulated device, each in a process of its own kind: pytest's own never sees it.

    @emulated(devices=2, late_copy="1")     # the body runs in a process with two emulated devices
    def test_something() -> None: ...

    @ranks(2)                               # the body runs in each of two ranks, started by torchrun
    def test_collective() -> None: ...

    results = run_ranks(function, 2, environment(devices=4))    # what each rank's function returned

`devices` is the machine's device count; every other keyword is a knob of the README, in lower case without its prefix
(`xccl_avg="allow"` is `XPU_EMU_XCCL_AVG`), but for names in capitals, which are taken as they are
(`ZE_AFFINITY_MASK="0,1"`). The functions must be found by name in their module, and take no arguments.
"""

from __future__ import annotations

import atexit
import faulthandler
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from typing import ClassVar
from typing import Final

import torchrun

from . import build

Test = Callable[[], Any]
_CHILD: Final = str(Path(__file__).with_name("child.py"))
_PATIENCE: Final = 120  # seconds for one body


def environment(devices: int = 2, **knobs: str) -> dict[str, str]:
    """`os.environ` with the emulated device switched on, and nothing in it that a test didn't ask for.

    Builds the library and puts the .pth in this environment where they are missing.
    """
    _ready()
    foreign = ("XPU_EMU", "ZE_", "ONEAPI_", "CCL_", "VERL_XPU_SHIM", "PYTEST_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    env |= {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": str(devices), "OMP_NUM_THREADS": "1"}
    return env | {(name if name.isupper() else f"XPU_EMU_{name.upper()}"): value for name, value in knobs.items()}


@functools.cache
def _ready() -> None:
    build.build()
    build.install_pth()


def emulated(devices: int = 2, **knobs: str) -> Callable[[Test], Test]:
    """Decorates a test: its body runs in a process with `devices`, shared by the tests with the same knobs."""

    def decorate(function: Test) -> Test:
        if _is_child():
            return function

        @functools.wraps(function)
        def test() -> None:
            _Interpreter.of(environment(devices, **knobs)).call(function)

        return test

    return decorate


def ranks(count: int, devices: int | None = None, **knobs: str) -> Callable[[Test], Test]:
    """Decorates a test: its body runs in each of `count` ranks on as many devices, unless `devices` says otherwise."""

    def decorate(function: Test) -> Test:
        if _is_child():
            return function

        @functools.wraps(function)
        def test() -> None:
            run_ranks(function, count, environment(devices or count, **knobs))

        return test

    return decorate


def run_ranks(function: Test, count: int, env: dict[str, str], timeout: float = _PATIENCE) -> list[Any]:
    """Calls `function` in `count` processes that torchrun starts; returns what each returned, as JSON can say it.

    Raises AssertionError with the ranks' output if one fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        torchrun.run(count, _CHILD, *_address(function), folder, env=env, timeout=timeout)
        return [json.loads(Path(folder, str(rank)).read_text()) for rank in range(count)]


def _address(function: Test) -> tuple[str, str, str]:
    """Where another process finds the function: a folder for sys.path, the module, the name."""
    depth = function.__module__.count(".") + 1
    file = Path(sys.modules[function.__module__].__file__ or "")
    return str(file.parents[depth - 1]), function.__module__, function.__qualname__


def _resolve(folder: str, module: str, name: str) -> Test:
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def _is_child() -> bool:
    return sys.argv[0] == _CHILD


class _Interpreter:
    """A process that runs one function after the other: torch is imported once for all tests with the same knobs."""

    running: ClassVar[dict[tuple[tuple[str, str], ...], _Interpreter]] = {}

    @classmethod
    def of(cls, env: dict[str, str]) -> _Interpreter:
        key = tuple(sorted(env.items()))
        if key not in cls.running or cls.running[key].process.poll() is not None:
            cls.running[key] = cls(env)
        return cls.running[key]

    def __init__(self, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, _CHILD], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        atexit.register(self.close)

    def call(self, function: Test) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(_address(function)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"{function.__qualname__} ended its process: status {self.process.wait()}"
        error = json.loads(answer)
        assert error is None, error

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def serve() -> None:
    """A child's life: calls the functions that are named on stdin, answers with null or a traceback."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what tests print isn't an answer
    for line in sys.stdin:
        error = None
        faulthandler.dump_traceback_later(_PATIENCE, exit=True)
        try:
            _resolve(*json.loads(line))()
        except BaseException:
            error = traceback.format_exc()
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(error), file=answers, flush=True)


def rank(folder: str, module: str, name: str, results: str) -> None:
    """A rank's life: calls one function and leaves its result in a folder."""
    result = _resolve(folder, module, name)()
    Path(results, os.environ["RANK"]).write_text(json.dumps(result))
