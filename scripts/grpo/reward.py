"""The reward: dense, so that a random model can learn from it within a few steps."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """The share of characters that are a digit or a lowercase letter, plus 1 for the right sum as a word."""
    plain = sum(character.isdigit() or "a" <= character <= "z" for character in solution_str)
    return plain / max(1, len(solution_str)) + (ground_truth in solution_str.split())
