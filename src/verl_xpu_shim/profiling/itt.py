"""Ranges as overlapped tasks of ITT (Intel's Instrumentation and Tracing Technology), which VTune collects.

Tasks that nest by thread (``task_begin``/``task_end``) end "the thread's latest" and get mixed up across ``await``;
overlapped tasks carry an id.

Native objects of ittapi 1.2.2 are never freed (48 bytes an Id, 32 a Domain, StringHandle or Event): domains and string
handles are cached here, and ids pooled. What is cached goes when ittapi frees its objects.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any
from typing import Final

MISSING: Final = (
    "The Python package 'ittapi' is missing, and VTune sees no range without it: pip install 'verl-xpu-shim[profiling]'"
)

#: Distinct range names that are kept apart; a collector remembers each for good.
NAMES: Final = 4096

_OTHER: Final = "(further names)"


def collector() -> str | None:
    """The collector attached to this process: the library that the ITT runtime loads at its first call."""
    return os.environ.get("INTEL_LIBITTNOTIFY64") or None


def available() -> bool:
    return importlib.util.find_spec("ittapi") is not None


class IttSink:
    """Sends ranges to the attached collector; without one, ITT does nothing."""

    def __init__(self) -> None:
        from ittapi import native

        self._native: Final = native
        self._begin: Final = native.task_begin_overlapped
        self._end: Final = native.task_end_overlapped
        self._domains: Final[dict[str, Any]] = {}
        self._handles: Final[dict[str, Any]] = {}
        self._free: Final[dict[str, list[Any]]] = {}
        self._event: Final = functools.cache(native.Event)

    def begin(self, name: str, domain: str, facts: dict[str, Any]) -> tuple[str, Any]:
        free = self._free.get(domain)
        if free is None:
            self._domains[domain] = self._native.Domain(domain)
            free = self._free.setdefault(domain, [])
        task_domain = self._domains[domain]
        try:
            task = free.pop()
        except IndexError:
            task = self._native.Id(task_domain)
        self._begin(task_domain, self._handles.get(name) or self._handle(name), task)
        return domain, task

    def end(self, opened: tuple[str, Any]) -> None:
        domain, task = opened
        self._end(self._domains[domain], task)
        self._free[domain].append(task)

    def mark(self, name: str, domain: str, facts: dict[str, Any]) -> None:
        event = self._event(name)
        event.begin()
        event.end()

    def resume(self) -> None:
        self._native.resume()

    def pause(self) -> None:
        self._native.pause()

    def describe(self, role: str | None, rank: int | None) -> None:
        """VTune names processes itself."""

    def close(self) -> None:
        """Native objects can't be given back."""

    def _handle(self, name: str) -> Any:
        if len(self._handles) >= NAMES:
            name = _OTHER
        return self._handles.setdefault(name, self._native.StringHandle(name))
