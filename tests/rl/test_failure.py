"""A process dies in the middle of a GRPO run: the job ends, soon, and says what died."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 120  # seconds from a death to the end of the job


class Job:
    """A run of scripts/grpo/job.sh with more steps than it is given time for."""

    def __init__(self, name: str, folder: Path, **environment: str) -> None:
        self.mark = uuid.uuid4().hex
        self.trace = folder / "trace"
        shim = {"VERL_XPU_SHIM_TRACE": str(self.trace), "VERL_XPU_SHIM_MARKERS": f"chrome:{folder}"}
        self.process = subprocess.Popen(
            ["scripts/grpo/job.sh", name, "trainer.total_training_steps=100", "trainer.total_epochs=100"],
            cwd=ROOT,
            env={**os.environ, "JOB_MARK": self.mark, **shim, **environment},
        )
        self._log = ROOT / ".cache" / "grpo" / name / "log"

    @property
    def log(self) -> str:
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""

    def wait_for(self, text: str, seconds: float = 600) -> None:
        end = time.monotonic() + seconds
        while text not in self.log:
            assert self.process.poll() is None, f"it ended without {text!r}: {self.log[-3000:]}"
            assert time.monotonic() < end, f"no {text!r} in {seconds} s: {self.log[-3000:]}"
            time.sleep(0.5)

    def pid(self, title: str) -> int:
        """Of one process of this job with that title."""
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if title in (each / "cmdline").read_text() and self.mark in (each / "environ").read_text():
                    return int(each.name)
            except OSError:
                continue  # another user's, or gone
        raise LookupError(title)

    def end(self) -> int:
        """The exit status, or a failure after PATIENCE seconds."""
        return self.process.wait(PATIENCE)

    def readable(self) -> bool:
        """Whether the trace and the ranges that were written so far can be read."""
        shim = ROOT / ".venv-grpo" / "bin" / "verl-xpu-shim"
        folder = self.trace.parent
        merge = [shim, "trace", "--merge", folder, "-o", folder / "merged.json"]
        return not any(subprocess.run(each, check=False).returncode for each in ([shim, "trace", self.trace], merge))


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    started: list[Job] = []
    yield started
    for job in started:
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait()


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_an_engine_dies_in_a_weight_update(victim: str, jobs: list[Job], tmp_path: Path) -> None:
    job = Job(f"dies-{victim}", tmp_path, CPU_ROLLOUT_DIES=f"{victim}:{tmp_path / 'dead'}")
    jobs.append(job)
    job.wait_for("cpu_rollout: killing")
    assert job.end() != 0
    assert "The vLLM engine of rollout replica" in job.log
    assert job.readable()


@pytest.mark.parametrize(
    ("title", "said"), [("ray::WorkerDict", "ActorDiedError"), ("VLLM::EngineCore", "EngineDeadError")]
)
def test_a_process_dies_in_a_step(title: str, said: str, jobs: list[Job], tmp_path: Path) -> None:
    job = Job(f"dies-{title.partition('::')[2]}", tmp_path)
    jobs.append(job)
    job.wait_for("step:1 - ")
    os.kill(job.pid(title), signal.SIGKILL)
    assert job.end() != 0
    assert said in job.log
    assert job.readable()
