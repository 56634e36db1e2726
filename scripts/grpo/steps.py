"""Read the steps of a verl run from its log, show them, and say what is wrong with them.

python scripts/grpo/steps.py LOG STEPS
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from statistics import mean

SHOWN = {
    "critic/score/mean": "reward",
    "actor/grad_norm": "grad norm",
    "training/rollout_probs_diff_mean": "probs diff",
    "timing_s/gen": "gen s",
    "timing_s/update_actor": "update s",
    "timing_s/update_weights": "sync s",
    "timing_s/step": "step s",
}

#: Below it, actor and rollout engine compute the same probabilities, so they have the same weights. Measured: 3e-6 with
#: the weights of this step, 6e-4 with those of the step before.
SAME_WEIGHTS = 1e-5

Step = dict[str, float]


def read(log: str) -> list[Step]:
    """The metrics of each step, in order: ``{"step": 1.0, "critic/score/mean": 0.37, ...}``."""
    steps = []
    for line in re.findall(r"\bstep:\d+ - .*", log):
        metrics = re.findall(r"([\w/@.-]+):(?:np\.\w+\()?([-+.\w]+)\)?(?= - |$)", line.strip())
        steps.append({name: float(value) for name, value in metrics if re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", value)})
    return steps


def faults(steps: list[Step], expected: int) -> list[str]:
    """What is wrong, a sentence each. Whether rewards rise shows from six steps on."""
    if [int(step["step"]) for step in steps] != list(range(1, expected + 1)):
        return [f"expected steps 1 to {expected}, found {[int(step['step']) for step in steps]}"]
    found = []
    for step in steps:
        difference = step.get("training/rollout_probs_diff_mean", float("nan"))
        if not difference < SAME_WEIGHTS:
            found.append(
                f"step {step['step']:.0f}: actor and rollout engine differ by {difference:.2g} in probability (at most "
                f"{SAME_WEIGHTS:g}): the weights didn't reach the engine"
            )
    if expected >= 6:
        third = expected // 3
        first, last = (mean(step["critic/score/mean"] for step in part) for part in (steps[:third], steps[-third:]))
        if not last > first:
            found.append(f"rewards don't rise: {first:.3f} in the first {third} steps, {last:.3f} in the last")
    return found


def main(log: Path, expected: int) -> int:
    steps = read(log.read_text("utf-8", "replace"))
    print("  step", *(f"{title:>10}" for title in SHOWN.values()))
    for step in steps:
        print(f"  {step['step']:4.0f}", *(f"{step.get(name, float('nan')):10.3g}" for name in SHOWN))
    wrong = faults(steps, expected)
    for fault in wrong:
        print(f"  {log}: {fault}", file=sys.stderr)
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
