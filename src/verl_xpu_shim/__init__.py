"""Run stock verl and vLLM on Intel GPUs. Everything but the start-up hook, which is :mod:`xpu_sitecustomize`."""

from __future__ import annotations

from typing import TYPE_CHECKING
from typing import Any

if TYPE_CHECKING:
    from verl_xpu_shim.stale import Stale

__all__ = ["audit", "capabilities"]


def audit() -> list[Stale]:
    """Return who still holds an original that was replaced: module, attribute and capability of each."""
    from verl_xpu_shim.stale import find

    return find()


def capabilities() -> dict[str, dict[str, Any]]:
    """Return every capability by name: ``kind``, ``summary`` and, by module, its ``state`` in this process."""
    from verl_xpu_shim.status import table

    return table()
