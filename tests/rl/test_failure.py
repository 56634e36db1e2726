"""A process dies in the middle of a GRPO run: the job ends, soon, and says what died."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Iterator
from pathlib import Path

import pytest

from .jobs import Job

pytestmark = pytest.mark.job
PATIENCE = 120  # seconds from a death to the end of the job
LONG = ("trainer.total_training_steps=100", "trainer.total_epochs=100")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(name: str, **environment: str) -> Job:
        started.append(Job(name, tmp_path, *LONG, **environment))
        return started[-1]

    yield start
    for job in started:
        if job.process.poll() is None:
            job.process.terminate()
            job.process.wait()


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_an_engine_dies_in_a_weight_update(victim: str, start: Callable[..., Job], tmp_path: Path) -> None:
    job = start(f"dies-{victim}", CPU_ROLLOUT_DIES=f"{victim}:{tmp_path / 'dead'}")
    job.wait_for("cpu_rollout: killing")
    assert job.process.wait(PATIENCE) != 0
    assert "The vLLM engine of rollout replica" in job.log
    assert job.merge().exists()


@pytest.mark.parametrize(
    ("victim", "said"),
    [
        ("ray::WorkerDict", "ActorDiedError"),
        ("VLLM::EngineCore", "EngineDeadError"),
        ("VLLM::Worker", "EngineDeadError"),
    ],
)
def test_a_process_dies_in_a_step(victim: str, said: str, start: Callable[..., Job]) -> None:
    job = start("dies-in-a-step")
    job.wait_for("step:2 - ")
    job.processes(victim)[0].kill()
    assert job.process.wait(PATIENCE) != 0
    assert said in job.log
    assert job.merge().exists()
