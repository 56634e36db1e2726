"""``rollout_profiler``: ``profiler.tool=vtune`` reaches the rollout servers and vLLM's workers.

Each of verl's servers accepts the tools of one tuple in its constructor and drops any other with a warning; vLLM in
turn knows a fixed set of profiler kinds. Both learn ``vtune``. Can go once verl and vLLM take profilers by plugin.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import sys
import typing
from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Change
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Constant
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import LiveView
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.profiling import ranges
from verl_xpu_shim.profiling.vtune import TOOL
from verl_xpu_shim.profiling.vtune import worker_profiler

ALLOWED: Final = ("torch", "npu")

#: vLLM 0.24 refuses other kinds in the constructor of its worker.
WORKER_KINDS_0_24: Final = Constant("Worker.__init__", ("torch", "cuda", None))


# verl's servers


def _patch_server(name: str, constructor: str, module: ModuleType, edit: Edit) -> None:
    server = getattr(module, name)
    if not isinstance(server, type):  # decorated with ``ray.remote``
        server = server.__ray_metadata__.modified_class
    edit.constant(inspect.getattr_static(server, constructor), ALLOWED, (*ALLOWED, TOOL))
    edit.wrap(server, "start_profile", functools.partial(_drive, "start"))
    edit.wrap(server, "stop_profile", functools.partial(_drive, "stop"))
    if hasattr(server, "_should_profile"):  # verl >= 0.9.1: whether vLLM is launched with a profiler
        edit.wrap(server, "_should_profile", _should_profile)


def _drive(verb: str, original: Callable[..., Any]) -> Callable[..., Any]:
    async def drive(self: Any, *args: Any, **kwargs: Any) -> Any:
        controller = self.profiler_controller
        if controller._tool != TOOL:
            return await original(self, *args, **kwargs)
        if _is_profiled(controller):
            # Not through the dispatcher: its stop runs the user's finish command, which is the trainer's to run.
            getattr(controller._impl, verb)()
            if _engine_collects(self):
                await getattr(self.engine, f"{verb}_profile")()
        return None

    return drive


def _should_profile(original: Callable[..., bool]) -> Callable[..., bool]:
    def should_profile(self: Any) -> bool:
        controller = self.profiler_controller
        return _is_profiled(controller) if controller._tool == TOOL else original(self)

    return should_profile


def _is_profiled(controller: Any) -> bool:
    return bool(controller.check_enable() and controller.check_this_rank())


def _engine_collects(server: Any) -> bool:
    """Whether the server has a vLLM engine that was launched with the profiler ``vtune``; on its head node."""
    config = getattr(getattr(server, "engine", None), "vllm_config", None)
    return config is not None and config.profiler_config.profiler == TOOL


def _patch_arguments(module: ModuleType, edit: Edit) -> None:
    """The arguments verl launches vLLM with."""

    def with_vtune(original: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
        def build_vllm_profiler_args(profiler_config: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
            if getattr(profiler_config, "tool", None) != TOOL:
                return original(profiler_config, *args, **kwargs)
            wanted = profiler_config.enable and _vllm_knows_vtune()
            return {"profiler_config": json.dumps({"profiler": TOOL})} if wanted else {}

        return build_vllm_profiler_args

    edit.wrap(module, "build_vllm_profiler_args", with_vtune)


def _vllm_knows_vtune() -> bool:
    config = sys.modules.get("vllm.config.profiler")
    return config is not None and TOOL in typing.get_args(config.ProfilerKind)


# vLLM


def _patch_kinds(module: ModuleType, edit: Edit) -> None:
    """Widen the type of ``ProfilerConfig.profiler``, which pydantic checks; before ``VllmConfig`` is built from it."""
    config, kinds = module.ProfilerConfig, module.ProfilerKind
    choices = (*typing.get_args(kinds), TOOL)
    wider: Any = typing.Literal[choices]
    edit.replace(module, "ProfilerKind", wider)
    edit.changed(Change(config, "profiler", kinds, wider), functools.partial(_retype, config, kinds))
    _retype(config, wider)


def _retype(config: type[Any], kinds: Any) -> None:
    from pydantic.dataclasses import rebuild_dataclass

    config.__annotations__["profiler"] = kinds | None
    config.__dataclass_fields__["profiler"].type = kinds | None
    rebuild_dataclass(config, force=True)


def _patch_supported(module: ModuleType, edit: Edit) -> None:
    by_device = getattr(module, "_SUPPORTED_PROFILER_KINDS", None)  # vLLM >= 0.33
    if by_device is not None:
        edit.replace(
            module, "_SUPPORTED_PROFILER_KINDS", {device: {*kinds, TOOL} for device, kinds in by_device.items()}
        )
    else:
        edit.notes.append("this vLLM has no table of supported profiler kinds")


def _patch_worker(name: str, module: ModuleType, edit: Edit) -> None:
    worker = getattr(module, name)
    if WORKER_KINDS_0_24.symbol.startswith(f"{name}.") and WORKER_KINDS_0_24.found(LiveView(module)) is None:
        kinds = WORKER_KINDS_0_24.value
        edit.constant(worker.__init__, kinds, (*kinds, TOOL))
    edit.wrap(worker, "profile", _profile)


def _profile(original: Callable[..., None]) -> Callable[..., None]:
    def profile(self: Any, is_start: bool = True, *args: Any, **kwargs: Any) -> None:
        if self.profiler_config is None or self.profiler_config.profiler != TOOL:
            original(self, is_start, *args, **kwargs)
            return
        if self.profiler is None:
            replica = os.environ.get("VERL_REPLICA_RANK")  # verl's server has set it
            ranges.describe("vLLM worker" if replica is None else f"vLLM worker of replica {replica}", self.rank)
            self.profiler = worker_profiler(sys.modules["vllm.profiler.wrapper"])(self.profiler_config)
        if is_start:
            limits = ("delay_iterations", "max_iterations")  # of one session, vLLM >= 0.33
            self.profiler.start(**{name: kwargs[name] for name in limits if name in kwargs})
        else:
            self.profiler.stop()

    return profile


def _server(module: str, name: str, constructor: str = "__init__") -> Target:
    return Target(
        f"verl.workers.rollout.{module}",
        functools.partial(_patch_server, name, constructor),
        (
            Constant(f"{name}.{constructor}", ALLOWED),
            Parameters(f"{name}.start_profile", ("self",), at_least=True),
            Parameters(f"{name}.stop_profile", ("self",), at_least=True),
            Mentions(f"{name}.__init__", ("profiler_controller",)),
        ),
    )


CAPABILITY: Final = Capability(
    name="rollout_profiler",
    required=False,
    summary="`vtune` passes the rollout servers' allowlist and drives them",
    targets=(
        _server("vllm_rollout.vllm_async_server", "vLLMHttpServer"),
        _server("sglang_rollout.async_sglang_server", "SGLangHttpServer"),
        _server("trtllm_rollout.trtllm_async_server", "TRTLLMHttpServer", "_init_profiler_controller"),
        Target(
            "verl.utils.profiler.config",
            _patch_arguments,
            (Parameters("build_vllm_profiler_args", ("profiler_config", "tool_config", "rank"), at_least=True),),
        ),
        Target("vllm.config.profiler", _patch_kinds, (Defines(("ProfilerKind", "ProfilerConfig")),)),
        Target(
            "vllm.profiler.wrapper",
            _patch_supported,
            (
                Parameters("WorkerProfiler._start", ("self",)),
                Parameters("WorkerProfiler._stop", ("self",)),
                Parameters("WorkerProfiler.annotate_context_manager", ("self", "name")),
                Mentions("WorkerProfiler.step", ("_running",)),
            ),
        ),
        Target(
            "vllm.v1.worker.gpu_worker",
            functools.partial(_patch_worker, "Worker"),
            (
                Parameters("Worker.profile", ("self", "is_start"), at_least=True),
                Mentions("Worker.profile", ("profiler", "profiler_config")),
                Mentions("Worker.annotate_profile", ("profiler", "annotate_context_manager")),
            ),
        ),
        Target("vllm.v1.worker.xpu_worker", functools.partial(_patch_worker, "XPUWorker"), (Defines(("XPUWorker",)),)),
        Target("vllm.v1.worker.cpu_worker", functools.partial(_patch_worker, "CPUWorker"), (Defines(("CPUWorker",)),)),
    ),
)
