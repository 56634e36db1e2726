"""Write sums as prompts for reinforcement learning: ``train.parquet`` (64 rows) and ``val.parquet`` (8) in FOLDER.

python scripts/grpo/prompts.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd


def prompt(a: int, b: int) -> dict[str, object]:
    return {
        "data_source": "tiny/sums",
        "prompt": [{"role": "user", "content": f"what is {a} plus {b}"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(a + b)},
        "extra_info": {"index": 8 * a + b},
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    rows = pd.DataFrame([prompt(a, b) for a in range(8) for b in range(8)])
    rows.to_parquet(folder / "train.parquet")
    rows[:8].to_parquet(folder / "val.parquet")
