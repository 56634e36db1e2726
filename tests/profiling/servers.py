"""Run in an interpreter of its own: verl's real rollout servers, driven as verl's trainer drives them.

The engines aren't installed and can't run without a GPU: modules that define whatever is asked of them stand for vLLM,
SGLang and TensorRT-LLM, and an object that remembers its calls stands for vLLM's engine.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
import types
from typing import Any
from typing import ClassVar
from typing import Literal

ENGINES = ("vllm", "sglang", "tensorrt_llm")
TINY = types.SimpleNamespace(max_position_embeddings=512)


class AnyModule(types.ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = "0.24.0"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {"__init__": lambda self, *args, **kwargs: None})


class Engines(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        ours = name.partition(".")[0] in ENGINES
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if ours else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> AnyModule:
        return AnyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class Engine:
    def __init__(self, kind: str | None) -> None:
        self.vllm_config = types.SimpleNamespace(profiler_config=types.SimpleNamespace(profiler=kind))
        self.calls: list[str] = []

    async def start_profile(self) -> None:
        self.calls.append("start")

    async def stop_profile(self) -> None:
        self.calls.append("stop")


def server(module: str, name: str, **config: Any) -> Any:
    """Construct a server by verl's own constructor, from a configuration that is complete only where it looks."""
    module_ = importlib.import_module(f"verl.workers.rollout.{module}")
    module_.omega_conf_to_dataclass = lambda config, dataclass_type=None: config
    module_.get_max_position_embeddings = lambda config: config.max_position_embeddings
    cls = getattr(module_, name)
    cls = getattr(cls, "__ray_metadata__", types.SimpleNamespace(modified_class=cls)).modified_class
    from verl.utils.profiler import ProfilerConfig
    from verl.utils.profiler.config import TorchProfilerToolConfig

    tools = {"torch": TorchProfilerToolConfig(contents=[])}
    sizes = dict.fromkeys(("tensor_model_parallel_size", "data_parallel_size", "pipeline_model_parallel_size"), 1)
    rollout = types.SimpleNamespace(
        max_model_len=None,
        full_determinism=False,
        load_format="auto",
        seed=0,
        profiler=ProfilerConfig(tool_config=tools, **config),
        **sizes,
    )
    model = types.SimpleNamespace(hf_config=TINY)
    if name == "TRTLLMHttpServer":  # its constructor insists on CUDA; the allowlist is in a method of its own
        made = object.__new__(cls)
        made.config, made.replica_rank, made.node_rank = rollout, 0, 0
        made.profiler_controller = made._init_profiler_controller()
        return made
    known = {"config": rollout, "model_config": model, "rollout_mode": None, "workers": [], "cuda_visible_devices": "0"}
    known |= {"replica_rank": 0, "node_rank": 0, "nnodes": 1, "gpus_per_node": 1, "base_gpu_id": 0}
    for method in ("_init_config", "_init_model_config"):
        setattr(cls, method, lambda self, given: given)
    cls._validate_configs = lambda self: None
    wanted = inspect.signature(cls.__init__).parameters
    return cls(**{name: value for name, value in known.items() if name in wanted})


def main() -> None:
    sys.meta_path.insert(0, Engines())
    import ray

    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    from verl.utils.profiler import ProfilerConfig
    from verl.utils.profiler import build_vllm_profiler_args
    from verl.utils.profiler import marked_timer

    report: dict[str, Any] = {}
    for module, name in (
        ("vllm_rollout.vllm_async_server", "vLLMHttpServer"),
        ("sglang_rollout.async_sglang_server", "SGLangHttpServer"),
        ("trtllm_rollout.trtllm_async_server", "TRTLLMHttpServer"),
    ):
        for tool, enable in (("vtune", True), ("vtune", False), ("torch", False)):
            made = server(module, name, tool=tool, enable=enable, ranks=[0])
            if name == "vLLMHttpServer":
                made.engine = Engine("vtune")

            async def profile(made: Any, label: str) -> None:
                await made.start_profile()
                with marked_timer(label, {}):
                    pass
                await made.stop_profile()

            asyncio.run(profile(made, f"{name} {tool} {enable}"))
            should = getattr(made, "_should_profile", lambda: None)()
            report[f"{name} {tool} {enable}"] = [made.profiler_controller.config.tool, should]
            if name == "vLLMHttpServer":
                report["engine"] = [*report.get("engine", []), made.engine.calls]
    plain = server("vllm_rollout.vllm_async_server", "vLLMHttpServer", tool="vtune", enable=True, ranks=[0])
    plain.engine = Engine(None)  # launched without a profiler: vLLM would refuse to start one
    asyncio.run(profile(plain, "engine without a profiler"))
    report["plain"] = plain.engine.calls
    for kinds in (Literal["torch", "vtune"], Literal["torch"]):
        sys.modules["vllm.config.profiler"] = types.SimpleNamespace(ProfilerKind=kinds)  # type: ignore[assignment]
        for enable in (True, False):
            config = ProfilerConfig(tool="vtune", enable=enable, tool_config=None)
            report.setdefault("arguments", []).append(build_vllm_profiler_args(config, None, 0))
    print(json.dumps(report))
    os._exit(0)  # Ray's own shutdown takes seconds


if __name__ == "__main__":
    main()
