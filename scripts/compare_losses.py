"""Read the losses that verl logged, show them side by side, and fail unless they fall and agree with the first run.

python scripts/compare_losses.py REFERENCE.log OTHER.log...
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

TOLERANCE = 1e-3
LOSS = re.compile(r"step:(\d+) .*?train/loss:([-+.\deE]+|nan|inf)")


def losses(log: Path) -> list[float]:
    steps = {int(step): float(loss) for step, loss in LOSS.findall(log.read_text("utf-8", "replace"))}
    return [steps[step] for step in sorted(steps)]


def faults(name: str, run: list[float], reference: list[float]) -> list[str]:
    if len(run) < 2 or len(run) != len(reference):
        return [f"{name}: {len(run)} losses in the log, {len(reference)} in the reference's"]
    found = []
    if not run[-1] < run[0]:
        found.append(f"{name}: the loss doesn't fall: {run}")
    gap = max(abs(mine - other) for mine, other in zip(run, reference, strict=True))
    if not gap <= TOLERANCE:
        found.append(f"{name}: {gap:.2e} away from the reference; at most {TOLERANCE:.0e} is rounding")
    return found


def main(logs: list[Path]) -> int:
    runs = {log.stem: losses(log) for log in logs}
    reference = next(iter(runs.values()))
    for name, run in runs.items():
        print(f"  {name:16} " + "  ".join(f"{loss:.6f}" for loss in run))
    found = [fault for name, run in runs.items() for fault in faults(name, run, reference)]
    print("\n".join(f"  {fault}" for fault in found) or f"  all fall, all within {TOLERANCE:.0e} of the first")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
