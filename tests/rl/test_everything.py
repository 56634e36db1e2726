"""Everything on at once, in a run of GRPO: profiling, the audit, the trace, an embedding table in host memory."""

from __future__ import annotations

import json
from collections import Counter
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grpo import steps

from verl_xpu_shim.capability import NAMES

from .jobs import Job

pytestmark = pytest.mark.job
STEPS, PROFILED = 3, (2, 3)
ROLE = "actor_rollout_ref.actor.profiler"
VTUNE = (
    "global_profiler.tool=vtune",
    f"global_profiler.steps=[{PROFILED[0]},{PROFILED[1]}]",
    f"{ROLE}.enable=True",
    f"{ROLE}.all_ranks=True",
)
DISCRETE = (f"+{ROLE}.tool_config.vtune.discrete=True",)
#: Two runs choose the same tokens: the likeliest each, where no two are equally likely as in bfloat16; and advantages
#: that don't come from differences among samples.
GREEDY = (
    "actor_rollout_ref.rollout.dtype=float32",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.rollout.top_k=1",
    "actor_rollout_ref.rollout.logprobs_mode=raw_logprobs",  # of all tokens, not of the one that is left
    "actor_rollout_ref.rollout.n=1",
    "algorithm.adv_estimator=reinforce_plus_plus",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[bool], Job]:
    """One run with the table in host memory and the collector on in whole steps, one without and in stages only."""
    jobs: dict[bool, Job] = {}

    def run(hosted: bool) -> Job:
        if hosted not in jobs:
            folder = tmp_path_factory.mktemp("hosted" if hosted else "stock")
            options = (*VTUNE, *(() if hosted else DISCRETE), *GREEDY, f"trainer.total_training_steps={STEPS}")
            job = jobs[hosted] = Job(
                f"everything-{hosted}",
                folder,
                *options,
                f"trainer.rollout_data_dir={folder}/rollouts",
                VERL_XPU_SHIM_AUDIT="1",
                VLLM_HOST_EMBED_TABLE="1" if hosted else "0",
                VLLM_LOGGING_LEVEL="INFO",  # verl's is WARN
            )
            job.process.wait()
        return jobs[hosted]

    return run


@pytest.mark.parametrize("hosted", [True, False])
def test_it_trains(run: Callable[[bool], Job], hosted: bool) -> None:
    job = run(hosted)
    assert job.process.returncode == 0, job.log[-6000:]
    found = steps.read(job.log)
    assert [fault for fault in steps.faults(found, STEPS) if "rewards" not in fault] == []
    assert all(step["actor/grad_norm"] > 0 for step in found)
    assert ("in host memory" in job.log) == hosted


def test_a_table_in_host_memory_changes_no_token(run: Callable[[bool], Job]) -> None:
    """Each step's tokens come from weights that the steps before have updated, the table among them."""

    def tokens(job: Job) -> list[tuple[int, str, str]]:
        files = sorted((job.folder / "rollouts").glob("*.jsonl"))
        assert len(files) == STEPS
        rows = (json.loads(line) for file in files for line in file.read_text().splitlines())
        return sorted((row["step"], row["input"], row["output"]) for row in rows)

    assert tokens(run(True)) == tokens(run(False))


@pytest.mark.parametrize("hosted", [True, False])
def test_no_process_holds_an_original(run: Callable[[bool], Job], hosted: bool) -> None:
    events = run(hosted).events()
    assert not [event for event in events if event["event"] in ("stale", "drift", "failed")]
    applied = defaultdict(set)
    for event in events:
        if event["event"] == "applied":
            applied[event["capability"]].add(event["pid"])
    assert applied.keys() == set(NAMES)


@pytest.mark.parametrize("hosted", [True, False])
def test_ranges_of_the_trainer_its_workers_and_the_rollout_servers(run: Callable[[bool], Job], hosted: bool) -> None:
    events: list[dict[str, Any]] = json.loads(run(hosted).merge().read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    found = defaultdict(set)
    for event in events:
        if event["ph"] == "X":
            found[names[event["pid"]].split(" (")[0]].add(event["name"])
    assert found["TaskRunnerV1"] >= {"step", "gen", "update_actor", "update_weights"}
    for rank in (0, 1):
        assert found[f"actor_rollout_ref rank {rank}"] == {
            "actor_compute_log_prob",
            "ref_compute_log_prob",
            "actor_update",
        }
        assert found[f"vLLM worker of replica {rank} rank 0"] == {"execute_model"}
    collected = Counter(names[event["pid"]].split(" (")[0] for event in events if event["name"] == "resume")
    times = len(PROFILED) * (1 if hosted else 3)  # steps, or the stages in them
    assert [collected[f"actor_rollout_ref rank {rank}"] for rank in (0, 1)] == [times, times]
    assert [collected[f"vllm_server_{replica}_0 rank {replica}"] for replica in (0, 1)] == [len(PROFILED)] * 2


def test_who_leaves_out_profiling_is_told(tmp_path: Path) -> None:
    left_out = "dist_profiler,profiler_markers,rollout_profiler"
    job = Job("told", tmp_path, *VTUNE, "trainer.total_training_steps=1", VERL_XPU_SHIM_DISABLE=left_out)
    assert job.process.wait() == 0, job.log[-6000:]
    assert f"profiler.tool=vtune does nothing in this process: VERL_XPU_SHIM_DISABLE={left_out}" in job.log
