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

from verl_xpu_shim.profiling import DOMAIN

MISSING: Final = "The Python package 'ittapi' is missing, and VTune sees no range without it: pip install ittapi"

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
        #: Domain name -> the domain, and ids of it that no open range has.
        self._domains: Final[dict[str | None, tuple[Any, list[Any]]]] = {}
        self._handles: Final[dict[str, Any]] = {}
        self._event: Final = functools.cache(native.Event)
        self._domains[None] = native.Domain(DOMAIN), []

    def begin(
        self, name: str, color: str | None, domain: str | None, category: str | None, detail: str | None
    ) -> tuple[Any, list[Any], Any]:
        native_domain, free = self._domains.get(domain) or self._domain(domain)
        try:
            task = free.pop()
        except IndexError:
            task = self._native.Id(native_domain)
        self._begin(native_domain, self._handles.get(name) or self._handle(name), task)
        return native_domain, free, task

    def end(self, opened: tuple[Any, list[Any], Any]) -> None:
        native_domain, free, task = opened
        self._end(native_domain, task)
        free.append(task)

    def mark(self, name: str, facts: dict[str, Any]) -> None:
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

    def _domain(self, name: str | None) -> tuple[Any, list[Any]]:
        return self._domains.setdefault(name, (self._native.Domain(name or DOMAIN), []))

    def _handle(self, name: str) -> Any:
        if len(self._handles) >= NAMES:
            name = _OTHER
        return self._handles.setdefault(name, self._native.StringHandle(str(name)))
