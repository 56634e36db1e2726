"""``ray_devices``: verl leaves the choice of device to a mask that Ray narrows, or not, and all ranks end on ``xpu:0``.

Why every worker has to see all devices, and how it finds its own, is told in ``verl_xpu_shim.platform.ray_binding``.
Can go once verl binds its workers by index on XPU, whatever Ray does to the mask.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from collections.abc import Mapping
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Capability
from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Mentions
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

SERVER: Final = "vLLMHttpServer"


def _worker(module: ModuleType, edit: Edit) -> None:
    """Each worker drives its own device, and no mask is written over the outer one."""

    def setup(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def bind(self: Any) -> None:
            if on_xpu():
                from verl_xpu_shim.platform import ray_binding

                ray_binding.bind()
            else:
                original(self)

        return bind

    def tell(original: Callable[[Any], str]) -> Callable[[Any], str]:
        def mask(self: Any) -> str:
            if not on_xpu():
                return original(self)
            import torch

            from verl_xpu_shim.platform import ray_binding

            # The device, not the mask, is what a worker started beside this one has to share.
            return ray_binding.mask_of_device(torch.xpu.current_device())

        return mask

    def configure(original: Callable[[Any, dict[str, Any]], None]) -> Callable[[Any, dict[str, Any]], None]:
        def share(self: Any, store: dict[str, Any]) -> None:
            if on_xpu():
                from verl_xpu_shim.platform import ray_binding

                store = dict(store)
                mask = store.pop(f"_{ray_binding.MASK.lower()}", None)
                if mask not in (None, ray_binding.UNSET):
                    store["_local_rank"] = ray_binding.drive(ray_binding.device_of_mask(mask))
            original(self, store)

        return share

    edit.wrap(module.Worker, "_setup_env_cuda_visible_devices", setup)
    edit.wrap(module.Worker, "get_cuda_visible_devices", tell)
    edit.wrap(module.Worker, "_configure_with_store", configure)


def _workers(module: ModuleType, edit: Edit) -> None:
    """Ray is told to leave the mask of verl's workers alone, and a cluster without GPUs is refused, not waited for."""

    def create(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if on_xpu():
                from verl_xpu_shim.platform.ray_binding import KEEP_MASK

                runtime_env = self._options.get("runtime_env", {})
                env_vars = {**runtime_env.get("env_vars", {}), **KEEP_MASK}
                self.update_options({"runtime_env": {**runtime_env, "env_vars": env_vars}})
            return original(self, *args, **kwargs)

        return call

    def check(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def available(self: Any) -> None:
            if on_xpu():
                from verl_xpu_shim.platform.ray_binding import require_gpus

                require_gpus()
            original(self)

        return available

    def reserve(original: Callable[..., Any]) -> Callable[..., Any]:
        def groups(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self.pgs is None and self.use_gpu and on_xpu():
                from verl_xpu_shim.platform.ray_binding import require_gpus

                require_gpus()
            return original(self, *args, **kwargs)

        return groups

    edit.wrap(module.RayClassWithInitArgs, "__call__", create)
    edit.wrap(module.ResourcePoolManager, "_check_resource_available", check)
    edit.wrap(module.RayResourcePool, "get_placement_groups", reserve)


def _noset(module: ModuleType, edit: Edit) -> None:
    """Verl's list of the variables that stop Ray from narrowing a mask lacks that of Ray >= 2.58 (ray#64440)."""

    def make(original: Callable[..., bool]) -> Callable[..., bool]:
        def noset(env_vars: Mapping[str, str] = os.environ) -> bool:
            return original(env_vars) or bool(on_xpu() and env_vars.get("RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"))

        return noset

    edit.wrap(module, "ray_noset_visible_devices", make)


def _server(module: ModuleType, edit: Edit) -> None:
    """A rollout server's mask names devices as Level Zero counts them, not as Ray does."""

    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            if on_xpu():
                import inspect

                from verl_xpu_shim.platform.ray_binding import mask_of_ids

                given = inspect.signature(original).bind(self, *args, **kwargs)
                given.arguments["cuda_visible_devices"] = mask_of_ids(given.arguments["cuda_visible_devices"])
                args, kwargs = given.args[1:], given.kwargs
            original(self, *args, **kwargs)

        return init

    edit.wrap(getattr(module, SERVER), "__init__", make)


CAPABILITY: Final = Capability(
    name="ray_devices",
    required=True,
    summary="each worker drives its own device",
    targets=(
        Target(
            "verl.single_controller.base.worker",
            _worker,
            (
                Parameters("Worker._setup_env_cuda_visible_devices", ("self",)),
                Mentions("Worker._setup_env_cuda_visible_devices", ("get_accelerator_ids", "set_device")),
                Mentions("Worker.__init__", ("_setup_env_cuda_visible_devices", "_configure_with_store")),
                Parameters("Worker.get_cuda_visible_devices", ("self",)),
                Parameters("Worker._configure_with_store", ("self", "store")),
            ),
        ),
        Target(
            "verl.single_controller.ray.base",
            _workers,
            (
                Parameters("RayClassWithInitArgs.update_options", ("self", "options")),
                Mentions("RayClassWithInitArgs.__call__", ("_options",)),
                Parameters("ResourcePoolManager._check_resource_available", ("self",)),
                Mentions("RayResourcePool.get_placement_groups", ("pgs", "use_gpu", "placement_group")),
            ),
        ),
        Target(
            "verl.utils.ray_utils",
            _noset,
            (Parameters("ray_noset_visible_devices", ("env_vars",)),),
        ),
        Target(
            "verl.workers.rollout.vllm_rollout.vllm_async_server",
            _server,
            (
                Parameters(f"{SERVER}.__init__", ("self", "cuda_visible_devices"), at_least=True),
                Mentions(f"{SERVER}.__init__", ("get_visible_devices_keyword", "environ")),
            ),
        ),
    ),
)
