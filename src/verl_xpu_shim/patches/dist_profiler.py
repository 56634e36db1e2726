"""``dist_profiler``: ``profiler.tool=vtune``.

verl's ``DistProfiler`` knows its tools by name and does nothing, silently, for any other. Where it fell back to its
no-op for ``vtune``, ours takes its place; what somebody else set up stays. Can go once verl has a ``vtune`` tool of its
own (proposed in verl-project/verl#7371).
"""

from __future__ import annotations

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
        ),
        *measurements.TARGETS,
    ),
)
