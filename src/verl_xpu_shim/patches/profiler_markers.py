"""``profiler_markers``: verl's four marker functions open and close ranges on XPU.

verl picks them once, when ``verl.utils.profiler`` is imported: nvtx's where the package ``nvtx`` is installed (also on
an XPU host), else functions that mark nothing. They are replaced in the modules that define them, before the package
binds either set. Ascend's (``mstx_profile``) are left alone. Can go once verl asks the platform for its markers.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.profiling import ranges

PACKAGE: Final = "verl.utils.profiler"
LABEL: Final = ("message", "color", "domain", "category")

MARKS: Final = (
    Parameters("mark_start_range", LABEL),
    Parameters("mark_end_range", ("range_id",)),
    Parameters("mark_annotate", LABEL),
)
TIMER: Final = Parameters("marked_timer", ("name", "timing_raw", "color", "domain", "category"))


def _patch_marks(module: ModuleType, edit: Edit) -> None:
    edit.wrap(module, "mark_start_range", lambda _: _start_range)
    edit.wrap(module, "mark_end_range", lambda _: _end_range)
    edit.wrap(module, "mark_annotate", lambda _: _annotate)


def _patch_timer(module: ModuleType, edit: Edit) -> None:
    # Timed as verl times, by its own code: on an exception it leaves the dictionary of times as it was.
    timed = inspect.unwrap(importlib.import_module(f"{PACKAGE}.performance").simple_timer)
    edit.wrap(module, "marked_timer", lambda _: _timer(timed))


def _patch_nvtx(module: ModuleType, edit: Edit) -> None:
    _patch_marks(module, edit)
    _patch_timer(module, edit)


def _timer(timed: Callable[..., Iterator[None]]) -> Callable[..., Any]:
    @contextmanager
    def marked_timer(
        name: str,
        timing_raw: dict[str, float],
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
    ) -> Iterator[None]:
        opened = ranges.begin(name, color, domain, category)
        try:
            yield from timed(name, timing_raw)
        finally:
            ranges.end(opened)

    return marked_timer


def _start_range(
    message: str | None = None, color: str | None = None, domain: str | None = None, category: str | None = None
) -> ranges.Range:
    return ranges.begin(message or "", color, domain, category)


def _end_range(range_id: ranges.Range) -> None:
    ranges.end(range_id)


def _annotate(
    message: str | None = None, color: str | None = None, domain: str | None = None, category: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not ranges.sinks():
            return function
        label = message or function.__name__, color, domain, category
        return ranges.annotated(function, functools.partial(ranges.Span, *label))

    return decorate


CAPABILITY: Final = Capability(
    name="profiler_markers",
    required=False,
    summary="`marked_timer`, `mark_start_range`, `mark_end_range`, `mark_annotate` emit ITT ranges",
    targets=(
        Target(f"{PACKAGE}.performance", _patch_timer, (TIMER, Defines(("simple_timer",)))),
        Target(f"{PACKAGE}.profile", _patch_marks, MARKS),
        Target(f"{PACKAGE}.nvtx_profile", _patch_nvtx, (*MARKS, TIMER)),
    ),
)
