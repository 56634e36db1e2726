"""Loaded by every process of a verl job (`VERL_USE_EXTERNAL_MODULES`): each rank notes on which device it ended."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import xpu_sitecustomize


def note(module: ModuleType) -> None:
    original = module.TrainingWorker.__init__

    @functools.wraps(original)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        import ray
        import torch

        found = {
            "physical": torch.xpu.get_device_properties().physical_index,
            "sees": torch.xpu.device_count(),
            "ray": ray.get_runtime_context().get_accelerator_ids()["GPU"],
        }
        Path(os.environ["REPORT_DEVICES"], f"{os.environ['RANK']}.json").write_text(json.dumps(found))

    module.TrainingWorker.__init__ = initialise


xpu_sitecustomize.watch("verl.workers.engine_workers", note)
