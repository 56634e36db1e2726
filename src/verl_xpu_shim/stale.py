"""Who still holds an original that was replaced."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

from verl_xpu_shim import policy
from verl_xpu_shim import trace


@dataclass(frozen=True)
class Stale:
    """``module.attribute`` is still the object that ``capability`` replaced."""

    module: str
    attribute: str
    capability: str


def find() -> list[Stale]:
    """Look through the attributes of every module, and of the classes they define, by identity."""
    originals = {
        id(change.old): capability
        for (capability, _), outcome in policy.outcomes.items()
        for change in outcome.edit.changes
        if callable(change.old)
    }
    found = []
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or name.partition(".")[0] == "verl_xpu_shim":
            continue
        for attribute, value in list(vars(module).items()):
            if id(value) in originals:
                found.append(Stale(name, attribute, originals[id(value)]))
            elif isinstance(value, type) and value.__module__ == name:
                found += [
                    Stale(name, f"{attribute}.{inner}", originals[id(held)])
                    for inner, held in list(vars(value).items())
                    if id(held) in originals
                ]
    return found


def report() -> None:
    """Trace what :func:`find` finds; runs at exit with ``VERL_XPU_SHIM_AUDIT=1``."""
    for each in find():
        trace.emit("stale", capability=each.capability, module=each.module, detail=each.attribute)
