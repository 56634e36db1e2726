"""``dist_profiler``: ``profiler.tool=vtune``.

verl's ``DistProfiler`` knows its tools by name and does nothing, silently, for any other. Where it fell back to its
no-op for ``vtune``, ours takes its place; what somebody else set up stays. A PPO trainer only tells its workers to
start and stop: its own process, where the stages of a step are timed, does so with them. Can go once verl has a
``vtune`` tool of its own (proposed in verl-project/verl#7371).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import measurements
from verl_xpu_shim.profiling import ranges
from verl_xpu_shim.profiling import vtune


def _patch(module: ModuleType, edit: Edit) -> None:
    def with_vtune(original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)

        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            given = signature.bind(self, *args, **kwargs).arguments
            ranges.describe(given.get("save_file_prefix"), given["rank"])  # the prefix is the worker's role
            if self._tool == vtune.TOOL and type(self._impl) is module._NoOpProfiler:
                self._impl = vtune.VTuneProfiler(discrete=vtune.is_discrete(self.tool_config))
                if self.check_enable() and self.check_this_rank():
                    vtune.warn_if_nothing_collects()

        return initialise

    edit.wrap(module.DistProfiler, "__init__", with_vtune)


def _left_out(module: ModuleType, edit: Edit) -> None:
    def telling(original: Callable[..., None]) -> Callable[..., None]:
        def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self._tool == vtune.TOOL and type(self._impl) is module._NoOpProfiler and self.check_enable():
                vtune.warn_of_absence()

        return initialise

    edit.wrap(module.DistProfiler, "__init__", telling)


def _patch_trainer(name: str, module: ModuleType, edit: Edit) -> None:
    trainer = getattr(module, name)
    edit.wrap(trainer, "_start_profiling", functools.partial(_with_the_workers, ranges.resume))
    edit.wrap(trainer, "_stop_profiling", functools.partial(_with_the_workers, ranges.pause))


def _with_the_workers(control: Callable[[], None], original: Callable[..., None]) -> Callable[..., None]:
    def start_or_stop(self: Any, *args: Any, **kwargs: Any) -> None:
        # Some trainers are told whether to profile this step, others (v1) keep it and move it on when they stop.
        profiled = kwargs.get("do_profile", args[0] if args else getattr(self, "curr_step_profile", False))
        original(self, *args, **kwargs)
        if profiled and self.config.global_profiler.tool == vtune.TOOL:
            control()

    return start_or_stop


def _trainer(module: str, name: str, *mentions: str) -> Target:
    return Target(
        module,
        functools.partial(_patch_trainer, name),
        (
            Parameters(f"{name}._start_profiling", ("self",), at_least=True),
            Parameters(f"{name}._stop_profiling", ("self",), at_least=True),
            Mentions(f"{name}._start_profiling", ("start_profile", *mentions)),
            Mentions(f"{name}._stop_profiling", ("stop_profile", *mentions)),
        ),
    )


CAPABILITY: Final = Capability(
    name="dist_profiler",
    required=False,
    summary="`profiler.tool=vtune`",
    targets=(
        Target(
            "verl.utils.profiler.profile",
            _patch,
            (
                Defines(("DistProfiler", "_NoOpProfiler")),
                Parameters("DistProfiler.__init__", ("self", "rank", "config", "tool_config"), at_least=True),
                Mentions("DistProfiler.__init__", ("_NoOpProfiler", "_impl", "_tool", "tool_config")),
                Parameters("DistProfiler.check_enable", ("self",)),
                Parameters("DistProfiler.check_this_rank", ("self",)),
                Mentions("DistProfiler.start", ("_impl",)),
                Mentions("DistProfiler.stop", ("_impl",)),
                Mentions("DistProfiler.annotate", ("_impl", "annotate")),
            ),
            left_out=_left_out,
        ),
        _trainer("verl.trainer.ppo.ray_trainer", "RayPPOTrainer"),
        _trainer("verl.trainer.ppo.v1.trainer_base", "PPOTrainer", "curr_step_profile"),
        *measurements.TARGETS,
    ),
)
