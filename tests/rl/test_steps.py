"""What scripts/grpo.sh takes for a good run, and what it doesn't."""

from __future__ import annotations

from grpo import steps

# As verl prints it, from a worker, with a NumPy scalar among the numbers.
LINE = (
    "\x1b[36m(TaskRunnerV1 pid=7)\x1b[0m step:{step} - training/rollout_probs_diff_mean:{difference} - "
    "critic/score/mean:np.float64({reward}) - training/global_step:{step}\n"
)


def log(rewards: list[float], difference: float = 3e-06) -> str:
    return "".join(LINE.format(step=i, difference=difference, reward=reward) for i, reward in enumerate(rewards, 1))


def test_every_number_of_a_step_is_read() -> None:
    assert steps.read(log([0.25])) == [
        {
            "step": 1,
            "training/rollout_probs_diff_mean": 3e-6,
            "critic/score/mean": 0.25,
            "training/global_step": 1,
        }
    ]


def test_rising_rewards_and_equal_probabilities_are_good() -> None:
    assert steps.faults(steps.read(log([0.1, 0.2, 0.15, 0.3, 0.25, 0.4])), 6) == []


def test_a_missing_step_is_told() -> None:
    assert steps.faults(steps.read(log([0.1, 0.2])), 3) == ["expected steps 1 to 3, found [1, 2]"]
    assert steps.faults(steps.read("Traceback"), 1) == ["expected steps 1 to 1, found []"]


def test_rewards_that_fall_are_told() -> None:
    assert (
        "rewards don't rise: 0.350 in the first 2 steps, 0.150"
        in steps.faults(steps.read(log([0.4, 0.3, 0.2, 0.2, 0.2, 0.1])), 6)[0]
    )


def test_a_rollout_engine_with_other_weights_is_told() -> None:
    stale = steps.faults(steps.read(log([0.1, 0.1], difference=6.6e-4)), 2)
    assert [fault.partition(":")[0] for fault in stale] == ["step 1", "step 2"]
    assert steps.faults(steps.read("step:1 - critic/score/mean:0.5"), 1) != []  # not measured at all
