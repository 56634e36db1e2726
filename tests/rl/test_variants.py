"""Other ways to train than that of scripts/grpo.sh: a short run each, checked as that script checks its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from grpo import steps

from .jobs import Job

pytestmark = pytest.mark.job
STEPS = 2
CRITIC = (
    "algorithm.adv_estimator=gae",
    "critic.model.path={model}",
    "critic.strategy=fsdp2",
    "critic.optim.lr=1e-3",
    "critic.ppo_micro_batch_size_per_gpu=4",
)
VARIANTS = {
    "fsdp": ("actor_rollout_ref.actor.strategy=fsdp", "actor_rollout_ref.ref.strategy=fsdp"),
    # Merged weights are sent. To send the adapter alone verl 0.9.1 calls WeightsMapper.get_unstacked_mapper, which
    # vLLM 0.29 renamed: that fails on any device (https://github.com/unslothai/unsloth-zoo/pull/1197 tells of it).
    "lora": (
        "actor_rollout_ref.model.lora_rank=8",
        "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.lora.merge=True",
    ),
    "critic": CRITIC,
    "validation": ("trainer.val_before_train=True", "trainer.test_freq=1"),
}


def finished(job: Job, count: int = STEPS, first: int = 1) -> list[steps.Step]:
    assert job.process.wait() == 0, job.log[-6000:]
    found = [step for step in steps.read(job.log) if step["step"] >= first]  # step 0 is a validation
    assert steps.faults([{**step, "step": step["step"] - first + 1} for step in found], count) == []
    return found


@pytest.mark.parametrize("variant", VARIANTS)
def test_it_trains(variant: str, tmp_path: Path) -> None:
    options = [option.format(model=Job.model) for option in VARIANTS[variant]]
    job = Job(f"variant-{variant}", tmp_path, *options, f"trainer.total_training_steps={STEPS}")
    found = finished(job)
    assert all(step["actor/grad_norm"] > 0 for step in found)
    if variant == "critic":
        assert all(step["critic/vf_loss"] > 0 for step in found)
    if variant == "validation":
        assert job.log.count("val-core/") >= STEPS + 1


def test_weights_reach_an_engine_that_generates_meanwhile(tmp_path: Path) -> None:
    """In colocate_async samples are a step older than the actor: from step 2 on they differ, and no more at step 4."""
    job = Job("colocate_async", tmp_path, "trainer.v1.trainer_mode=colocate_async", "trainer.total_training_steps=4")
    assert job.process.wait() == 0, job.log[-6000:]
    first, *later = (step["training/rollout_probs_diff_mean"] for step in steps.read(job.log))
    assert first < steps.SAME_WEIGHTS
    assert len(later) == 3
    assert max(later) < 2 * later[0]


@pytest.mark.parametrize("use_v1", [True, False])
def test_it_resumes_from_a_checkpoint(tmp_path: Path, use_v1: bool) -> None:
    options = (f"trainer.use_v1={use_v1}", f"trainer.default_local_dir={tmp_path}/checkpoints", "trainer.save_freq=1")
    finished(Job("before", tmp_path, *options, "trainer.total_training_steps=1"), 1)
    after = Job("after", tmp_path, *options, "trainer.resume_mode=auto", "trainer.total_training_steps=2")
    finished(after, 1, first=2)
    assert "global_step_1" in after.log
    assert (tmp_path / "checkpoints/global_step_2").is_dir()
