"""Runs of scripts/grpo/job.sh, as tests start and watch them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "grpo"
SHIM = ROOT / ".venv-grpo" / "bin" / "verl-xpu-shim"


class Job:
    """One run in the background; traces and ranges go to `folder`."""

    model = CACHE / "model"

    def __init__(self, name: str, folder: Path, *options: str, **environment: str) -> None:
        self.folder = folder
        self.trace = folder / "trace"
        self._log = CACHE / name / "log"
        self._log.unlink(missing_ok=True)
        shim = {"VERL_XPU_SHIM_TRACE": str(self.trace), "VERL_XPU_SHIM_MARKERS": f"chrome:{folder}"}
        self.process = subprocess.Popen(
            ["scripts/grpo/job.sh", name, *options],
            cwd=ROOT,
            env={**os.environ, **shim, **environment},
        )

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def wait_for(self, text: str, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while text not in self.log:
            assert self.process.poll() is None, f"it ended without {text!r}: {self.log[-3000:]}"
            assert time.monotonic() < end, f"no {text!r} in {seconds} s: {self.log[-3000:]}"
            time.sleep(0.5)

    def processes(self, title: str) -> list[psutil.Process]:
        """Those of the run whose command begins so, in the order in which they were started."""
        family = sorted(psutil.Process(self.process.pid).children(recursive=True), key=lambda each: each.pid)
        return [each for each in family if " ".join(each.cmdline()).startswith(title)]

    def events(self) -> list[dict[str, Any]]:
        """The trace log."""
        return [json.loads(line) for line in self.trace.read_text().splitlines()]

    def merge(self) -> Path:
        """One trace of all ranges written so far; fails where they, or the trace log, can't be read."""
        subprocess.run([SHIM, "trace", self.trace], check=True)
        merged = self.folder / "merged.json"
        subprocess.run([SHIM, "trace", "--merge", self.folder, "-o", merged], check=True)
        return merged
