"""What ``tool=vtune`` means to the profilers of verl and of vLLM."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Callable
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextlib import contextmanager
from contextlib import nullcontext
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.profiling import itt
from verl_xpu_shim.profiling import ranges

TOOL: Final = "vtune"

_log: Final = logging.getLogger("verl_xpu_shim.profiling")


class VTuneProfiler:
    """Behind ``verl.utils.profiler.DistProfiler``: start and stop resume and pause the collector, stages are ranges.

    With ``discrete`` the collector runs during stages only.

    It derives from no class of verl's: an inherited method would read attributes that only the dispatcher has.
    """

    def __init__(self, *, discrete: bool = False) -> None:
        self._discrete: Final = discrete
        self._started = False
        self._steps = itertools.count(1)

    def start(self, **_: Any) -> None:
        if not self._started:
            self._started = True
            if not self._discrete:
                ranges.resume()

    def stop(self) -> None:
        if self._started:
            self._started = False
            if not self._discrete:
                ranges.pause()

    def step(self) -> None:
        """Mark the end of a step. verl calls this outside profiled steps too; those aren't marked."""
        if self._started:
            ranges.mark("step", number=next(self._steps))

    def annotate(
        self,
        message: str | None = None,
        color: str | None = None,
        domain: str | None = None,
        category: str | None = None,
        **kwargs: Any,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorate a stage, named as verl names it: its message, its role or the function."""

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            name = message or kwargs.get("role") or function.__name__
            return ranges.annotated(function, functools.partial(self._stage, name, color, domain, category))

        return decorate

    @contextmanager
    def _stage(self, *label: str | None) -> Iterator[None]:
        if not self._discrete:
            with ranges.Span(*label):  # type: ignore[arg-type]
                yield
            return
        ranges.resume()
        try:
            with ranges.Span(*label):  # type: ignore[arg-type]
                yield
        finally:
            ranges.pause()


def is_discrete(tool_config: Any) -> bool:
    """Whether ``tool_config`` asks for collection during stages only.

    verl hands over the tool's own settings, or all tools' by name; as a mapping, a dataclass or nothing.
    """

    def entry(config: Any, name: str) -> Any:
        return config.get(name) if hasattr(config, "get") else getattr(config, name, None)

    return bool(entry(entry(tool_config, TOOL) or tool_config, "discrete"))


@functools.cache
def warn_if_nothing_collects() -> None:
    """Say once why ``tool=vtune`` will show nothing in this process, if so."""
    if ranges.sinks() or (
        itt.collector() and not itt.available()
    ):  # the latter has been said when the sinks were opened
        return
    if itt.available():
        _log.warning(
            "profiler.tool=vtune, but no collector is attached to this process: start the run under "
            "'vtune -collect … -start-paused --', or set %s=chrome:DIRECTORY for a trace. The run goes on.",
            ranges.VARIABLE,
        )
    else:
        _log.warning("profiler.tool=vtune: %s. The run goes on.", itt.MISSING)


@functools.cache
def warn_of_absence() -> None:
    """Say once that ``tool=vtune`` shows nothing in this process, as the user has left out what would collect."""
    _log.warning(
        "profiler.tool=vtune does nothing in this process: VERL_XPU_SHIM_DISABLE=%s leaves out dist_profiler, and verl "
        "has no such tool of its own. The run goes on.",
        os.environ.get("VERL_XPU_SHIM_DISABLE", ""),
    )


@functools.cache
def worker_profiler(wrapper: ModuleType) -> type[Any]:
    """The vLLM worker profiler of kind ``vtune``, on the base class in ``wrapper`` (``vllm.profiler.wrapper``)."""

    class VTuneWorkerProfiler(wrapper.WorkerProfiler):  # type: ignore[name-defined,misc]
        def _start(self) -> None:
            ranges.resume()

        def _stop(self) -> None:
            ranges.pause()

        def annotate_context_manager(self, name: str) -> AbstractContextManager[None]:
            # vLLM names a step by its counts of requests and tokens, and collectors keep every name.
            return ranges.Span("execute_model", detail=name) if self._running else nullcontext()

    return VTuneWorkerProfiler
