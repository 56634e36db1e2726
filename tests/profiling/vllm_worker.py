"""Run in an interpreter of its own that has what vLLM imports: the profiler kind ``vtune`` in vLLM's real workers.

The shim patches what it watches as on an XPU host. No device: the workers are made without their constructors, which
would open one, and asked to profile by their own methods.
"""

from __future__ import annotations

import importlib
import json
import types
from typing import Any

import xpu_sitecustomize
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import load
from verl_xpu_shim.contract import LiveView
from verl_xpu_shim.contract import broken

CAPABILITY = load("rollout_profiler")
EDITS: dict[str, Edit] = {}


def apply(module: types.ModuleType) -> None:
    target = CAPABILITY.target(module.__name__)
    assert not broken(target.contract, LiveView(module)), broken(target.contract, LiveView(module))
    edit = EDITS[module.__name__] = Edit(CAPABILITY.name)
    target.patch(module, edit)


def accepted(config: Any) -> dict[str, bool]:
    def accepts(kind: str) -> bool:
        try:
            config(profiler=kind, **({"torch_profiler_dir": "/nowhere"} if kind == "torch" else {}))
        except ValueError:
            return False
        return True

    return {kind: accepts(kind) for kind in ("vtune", "torch", "bogus")}


def made(cls: Any, config: Any) -> Any:
    worker = object.__new__(cls)
    worker.profiler = None
    worker.profiler_config = config.profiler_config
    worker.vllm_config = config
    worker.rank = worker.local_rank = 0
    return worker


def main() -> None:
    xpu_sitecustomize.install()
    for target in CAPABILITY.targets:
        if target.module.startswith("vllm."):
            xpu_sitecustomize.watch(target.module, apply)
    import vllm
    from vllm import platforms
    from vllm.config import ProfilerConfig
    from vllm.config import VllmConfig
    from vllm.platforms.cpu import CpuPlatform

    platforms._current_platform = CpuPlatform()  # 0.24 doesn't ask VLLM_TARGET_DEVICE
    report: dict[str, Any] = {"vllm": vllm.__file__, "accepted": accepted(ProfilerConfig)}
    config = VllmConfig(profiler_config={"profiler": "vtune"})
    report["config"] = config.profiler_config.profiler

    from vllm.v1.core.sched.output import SchedulerOutput

    for kind, name in (("gpu", "Worker"), ("xpu", "XPUWorker"), ("cpu", "CPUWorker")):
        module = importlib.import_module(f"vllm.v1.worker.{kind}_worker")
        worker = made(getattr(module, name), config)
        for _ in range(2):
            worker.profile(is_start=True)
            with worker.annotate_profile(SchedulerOutput.make_empty()):
                pass
            worker.profile(is_start=False)
            with worker.annotate_profile(SchedulerOutput.make_empty()):
                pass

    for edit in EDITS.values():
        edit.undo()
    report["undone"] = accepted(ProfilerConfig)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
