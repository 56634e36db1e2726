"""Ranks that torchrun starts, each one's output apart: through one pipe two ranks' lines run together.

torchrun starts Python unbuffered, which writes a line's text and its end separately; `flush=True` doesn't change that.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


def launch(
    count: int, *command: str, env: Mapping[str, str], cwd: Path | None = None, timeout: float = 300
) -> tuple[int, list[str], str]:
    """Runs torchrun's arguments `command` in `count` ranks: its status, each rank's stdout, everybody's stderr."""
    with tempfile.TemporaryDirectory() as folder:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
        done = subprocess.run(
            [*torchrun, f"--log-dir={folder}", "--redirects=1", *command],
            env=env,
            cwd=cwd,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )
        logs = [Path(folder).glob(f"*/attempt_0/{rank}/stdout.log") for rank in range(count)]
        return done.returncode, ["".join(log.read_text() for log in found) for found in logs], done.stderr


def run(
    count: int, *command: str, env: Mapping[str, str], cwd: Path | None = None, timeout: float = 300
) -> list[list[str]]:
    """The lines that each rank printed; AssertionError with the ends of all output where torchrun fails."""
    status, outputs, errors = launch(count, *command, env=env, cwd=cwd, timeout=timeout)
    assert status == 0, "\n".join([f"status {status}", *(each[-4000:] for each in outputs), errors[-8000:]])
    return [output.splitlines() for output in outputs]
