"""Who still holds an original that was replaced."""

from __future__ import annotations

import atexit
import sys
import threading
import time
from dataclasses import dataclass
from types import ModuleType

from verl_xpu_shim import policy
from verl_xpu_shim import trace

#: Between two looks of the audit.
SECONDS = 10.0


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
        for (capability, _), outcome in list(policy.outcomes.items())
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


def watch() -> None:
    """Trace what :func:`find` finds, each once: at exit, and every few seconds, since Ray ends its workers without one.

    For ``VERL_XPU_SHIM_AUDIT=1``; a look takes some ten milliseconds.
    """
    told: set[Stale] = set()
    lock = threading.Lock()

    def look() -> None:
        with lock:
            for each in find():
                if each not in told:
                    told.add(each)
                    trace.emit("stale", capability=each.capability, module=each.module, detail=each.attribute)

    def look_again() -> None:
        while True:
            time.sleep(SECONDS)
            look()

    atexit.register(look)
    threading.Thread(target=look_again, name="verl-xpu-shim audit", daemon=True).start()
