"""Loaded by every process of the run (`VERL_USE_EXTERNAL_MODULES`): a range outside verl's stages, a stage that fails.

A range `log` goes round each step's logging, which rank 0 alone does, after the profiler was stopped for the step.
`PROFILING_TEST_FAIL_AT=N` makes the N-th `train_batch` of each rank raise.
"""

from __future__ import annotations

import functools
import itertools
import os
from types import ModuleType
from typing import Any

import xpu_sitecustomize


def mark_logging(module: ModuleType) -> None:
    original = module.Tracking.log

    @functools.wraps(original)
    def log(self: Any, *args: Any, **kwargs: Any) -> Any:
        from verl.utils.profiler import marked_timer

        with marked_timer("log", {}):
            return original(self, *args, **kwargs)

    module.Tracking.log = log


def fail(module: ModuleType) -> None:
    original, calls = module.TrainingWorker._postprocess_output, itertools.count(1)

    @functools.wraps(original)
    def postprocess(self: Any, *args: Any, **kwargs: Any) -> Any:
        if next(calls) == int(os.environ["PROFILING_TEST_FAIL_AT"]):
            raise LookupError("the stage's own")
        return original(self, *args, **kwargs)

    module.TrainingWorker._postprocess_output = postprocess


xpu_sitecustomize.watch("verl.utils.tracking", mark_logging)
if "PROFILING_TEST_FAIL_AT" in os.environ:
    xpu_sitecustomize.watch("verl.workers.engine_workers", fail)
