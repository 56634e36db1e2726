"""Everything the shim can do, in one GRPO run: profiler, NUMA, audit, host embedding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from grpo import steps

from verl_xpu_shim import trace_report

from .jobs import CACHE
from .jobs import Job

#: Greedy answers before training and after each step.
ANSWERS = ("trainer.val_before_train=True", "trainer.test_freq=1")
PROFILER = (
    "global_profiler.tool=vtune",
    "global_profiler.steps=[1,2]",
    "actor_rollout_ref.actor.profiler.enable=True",
    "actor_rollout_ref.actor.profiler.all_ranks=True",
    "actor_rollout_ref.rollout.profiler.enable=True",
    "actor_rollout_ref.rollout.profiler.all_ranks=True",
)


def run(name: str, folder: Path, *options: str, **environment: str) -> tuple[Job, list[object]]:
    """The job, and what it answered before training, in order."""
    answers = CACHE / name / "answers"
    folder.mkdir()
    job = Job(name, folder, *ANSWERS, f"trainer.validation_data_dir={answers}", *options, **environment)
    assert job.process.wait(900) == 0, job.log[-3000:]
    assert steps.faults(steps.read(job.log), 2) == []
    rows = [json.loads(line) for line in (answers / "0.jsonl").read_text().splitlines()]
    return job, sorted((row["input"], row["output"]) for row in rows)


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return run("nothing-on", tmp_path_factory.mktemp("without") / "run")[1]


@pytest.mark.parametrize("discrete", [False, True])
def test_everything_at_once(discrete: bool, without: list[object], tmp_path: Path) -> None:
    choice = f"+actor_rollout_ref.actor.profiler.tool_config.vtune.discrete={discrete}"
    job, answers = run(
        f"everything-discrete-{discrete}",
        tmp_path / "run",
        *PROFILER,
        choice,
        VERL_XPU_SHIM_AUDIT="1",
        VERL_XPU_SHIM_STRICT="1",
        VLLM_HOST_EMBED_TABLE="1",
    )
    assert answers == without  # the same tokens from the table in host memory

    events, broken = trace_report.read([job.trace])
    assert not broken
    assert [event for event in events if event["event"] in ("stale", "drift", "failed")] == []
    applied = {event["capability"] for event in events if event["event"] == "applied"}
    assert {"host_embedding", "numa_affinity", "dist_profiler", "profiler_markers", "rollout_profiler"} <= applied

    merged = json.loads(job.merge().read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in merged if event["name"] == "process_name"}
    ranges = {(named[event["pid"]].partition(" rank")[0], event["name"]) for event in merged if "dur" in event}
    assert {name for _, name in ranges} >= {"step", "gen", "update_weights", "actor_update", "execute_model"}
    assert len(named) >= 5  # the trainer, two workers, two vLLM workers
