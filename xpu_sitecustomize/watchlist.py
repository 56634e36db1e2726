"""What is watched once verl or vLLM starts to be imported: module name -> capabilities, applied in this order."""

from __future__ import annotations

from typing import Final

WATCHLIST: Final[dict[str, tuple[str, ...]]] = {}
