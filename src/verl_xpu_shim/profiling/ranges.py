"""Ranges: real begin/end pairs with identities, sent to every sink this process has.

A range isn't an entry of a per-thread stack: it may begin in one thread and end in another, ends may come out of order,
and coroutines may interleave. ``VERL_XPU_SHIM_MARKERS`` names the sinks; without it ranges go to ITT where a collector
is attached, and cost next to nothing where none is.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import threading
from collections.abc import AsyncGenerator
from collections.abc import Callable
from collections.abc import Generator
from contextlib import AbstractContextManager
from typing import Any
from typing import Final
from typing import Protocol

from verl_xpu_shim.profiling import itt
from verl_xpu_shim.profiling.chrome import ChromeSink
from verl_xpu_shim.profiling.itt import IttSink

VARIABLE: Final = "VERL_XPU_SHIM_MARKERS"

_log: Final = logging.getLogger("verl_xpu_shim.profiling")


class Sink(Protocol):
    """Where ranges go. ``begin`` returns what ``end`` of the same range is given; neither raises."""

    def begin(
        self, name: str, color: str | None, domain: str | None, category: str | None, detail: str | None
    ) -> Any: ...

    def end(self, opened: Any) -> None: ...

    def mark(self, name: str, facts: dict[str, Any]) -> None: ...

    def resume(self) -> None: ...

    def pause(self) -> None: ...

    def describe(self, role: str | None, rank: int | None) -> None: ...

    def close(self) -> None: ...


#: An open range: the sinks it was sent to, and what each returned. None where there was no sink.
Range = tuple[tuple[Sink, ...], list[Any]] | None

_lock = threading.Lock()
_sinks: tuple[Sink, ...] | None = None
_resumed = 0


def begin(
    name: str,
    color: str | None = None,
    domain: str | None = None,
    category: str | None = None,
    detail: str | None = None,
) -> Range:
    """Open a range, in the domain ``verl`` unless another is named.

    ITT has no colour and no category for a task, and takes ``name`` and ``domain`` alone. Collectors keep every name
    for good: what differs each time belongs in ``detail``.
    """
    sinks = _sinks
    if sinks is None:
        sinks = _open()
    if not sinks:
        return None
    tokens = []
    for sink in sinks:  # this and end() are what a range costs: scripts/benchmarks/markers.py
        tokens.append(sink.begin(name, color, domain, category, detail))
    return sinks, tokens


def end(opened: Range) -> None:
    """Close a range. Closing it again does nothing, nor does closing in a forked child what its parent opened."""
    if opened is None:
        return
    sinks, tokens = opened
    if tokens and sinks is _sinks:
        for sink in reversed(sinks):
            sink.end(tokens.pop())


class Span(AbstractContextManager[None]):
    """A range round a block; it is closed whichever way the block is left."""

    __slots__ = ("_arguments", "_opened")

    def __init__(
        self,
        name: str,
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
        detail: str | None = None,
    ) -> None:
        self._arguments = (name, color, domain, category, detail)
        self._opened: Range = None

    def __enter__(self) -> None:
        self._opened = begin(*self._arguments)

    def __exit__(self, *_: object) -> None:
        end(self._opened)


def mark(name: str, **facts: Any) -> None:
    """Mark a moment."""
    for sink in sinks():
        sink.mark(name, facts)


def resume() -> None:
    """Let the collector collect. Calls nest: colocated roles of one process each have a profiler of their own."""
    global _resumed
    where = sinks()
    with _lock:
        _resumed += 1
        if _resumed == 1:
            for sink in where:
                sink.resume()


def pause() -> None:
    """Take one :func:`resume` back; the collector pauses with the last one."""
    global _resumed
    where = sinks()
    with _lock:
        if _resumed == 1:
            for sink in where:
                sink.pause()
        _resumed = max(0, _resumed - 1)


def describe(role: str | None = None, rank: int | None = None) -> None:
    """Say what this process is, for the name of its track."""
    for sink in sinks():
        sink.describe(role, rank)


def annotated(function: Callable[..., Any], around: Callable[[], AbstractContextManager[Any]]) -> Callable[..., Any]:
    """Return ``function`` run inside ``around()``. A coroutine or generator function stays what it is."""
    if inspect.iscoroutinefunction(function):

        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            with around():
                return await function(*args, **kwargs)

        wrapper: Callable[..., Any] = coroutine
    elif inspect.isasyncgenfunction(function):

        async def async_generator(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
            with around():
                inner = function(*args, **kwargs)
                step = inner.__anext__()
                try:
                    while True:
                        value = await step
                        try:
                            step = inner.asend((yield value))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = inner.athrow(error)
                except StopAsyncIteration:
                    return
                finally:
                    await inner.aclose()

        wrapper = async_generator
    elif inspect.isgeneratorfunction(function):

        def generator(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with around():
                return (yield from function(*args, **kwargs))

        wrapper = generator
    else:

        def plain(*args: Any, **kwargs: Any) -> Any:
            with around():
                return function(*args, **kwargs)

        wrapper = plain
    return functools.wraps(function)(wrapper)


def sinks() -> tuple[Sink, ...]:
    """The sinks of this process, opened at the first call."""
    return _open() if _sinks is None else _sinks


def _open() -> tuple[Sink, ...]:
    global _sinks
    with _lock:
        if _sinks is None:
            _sinks = tuple(sink for sink in map(_sink, _wanted()) if sink is not None)
        return _sinks


def _wanted() -> list[str]:
    value = os.environ.get(VARIABLE)
    if value is None:
        return ["itt"] if itt.collector() else []
    return [entry.strip() for entry in value.split(",") if entry.strip()]


def _sink(entry: str) -> Sink | None:
    kind, _, argument = entry.partition(":")
    if kind == "itt" and not argument:
        try:
            return IttSink()
        except ImportError as error:
            _log.warning("%s (%s). Ranges are not sent to ITT; the run goes on.", itt.MISSING, error)
    elif kind == "chrome" and argument:
        return ChromeSink(argument)
    else:
        _log.warning("%s: %r is none of 'itt', 'chrome:DIRECTORY'; it is left out.", VARIABLE, entry)
    return None


def _forget() -> None:
    """In a forked child: the parent's sinks and open ranges are the parent's."""
    global _sinks, _lock
    inherited, _sinks, _lock = _sinks, None, threading.Lock()
    for sink in inherited or ():
        sink.close()


os.register_at_fork(after_in_child=_forget)
