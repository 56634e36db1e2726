from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from typing import Protocol

import pytest

import itt_collector
import wheels
from emulated_xpu.harness import environment as emulated_environment

#: What verl's trainers import beyond what verl asks for; of its extra ``verl-core``.
CORE = ("TransferQueue", "cachetools", "pyzmq", "msgspec", "mathruler", "qwen_vl_utils")


class Child(Protocol):
    def __call__(self, code: str, **options: Any) -> subprocess.CompletedProcess[str]: ...


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Where the collector writes."""
    return tmp_path / "itt.log"


@pytest.fixture
def child(log: Path) -> Child:
    """Run code in an interpreter of its own, as a user would: the shim comes in by itself.

    collect: attach the collector. start_paused: it collects nothing until the first resume. xpu: the emulated device is
    there. path: folders for PYTHONPATH. python: another interpreter. Other options are environment variables.
    """

    def run(
        code: str,
        *,
        collect: bool = False,
        start_paused: bool = False,
        xpu: bool = False,
        path: tuple[Path, ...] = (),
        check: bool = True,
        python: Path | str = sys.executable,
        **variables: str,
    ) -> subprocess.CompletedProcess[str]:
        ours = ("VERL_XPU_SHIM", "INTEL_LIBITTNOTIFY", "ITT_", "XPU_EMU", "RANK", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        if collect:
            environment.update(itt_collector.environment(log, start_paused=start_paused))
        if xpu:
            emulated = emulated_environment(2)
            environment.update({name: value for name, value in emulated.items() if name.startswith("XPU_EMU")})
        environment.update(variables, PYTHONPATH=os.pathsep.join(map(str, path)))
        command = [str(python), "-c", code]
        done = subprocess.run(command, env=environment, text=True, capture_output=True, timeout=300, check=False)
        if check:
            assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session", params=["0.9.0", "0.9.1"])
def verl(request: pytest.FixtureRequest) -> Path:
    """A folder for PYTHONPATH that has a released verl."""
    return wheels.installed(f"verl=={request.param}")


@pytest.fixture(scope="session")
def core() -> Path:
    return wheels.installed(*CORE)


@pytest.fixture(params=["plain", "nvtx"])
def branch(request: pytest.FixtureRequest) -> tuple[str, tuple[Path, ...]]:
    """Without the package ``nvtx`` and with it, which verl then prefers: what code begins with, and PYTHONPATH."""
    if request.param == "nvtx":
        return "", (wheels.installed("nvtx"),)
    return "import sys; sys.modules['nvtx'] = None  # as if it were not installed\n", ()
