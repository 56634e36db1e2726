"""What can't work on XPU and is refused where it is configured, not where it breaks. Belongs to ``platform``."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any
from typing import Final

from verl_xpu_shim.capability import Edit
from verl_xpu_shim.capability import Target
from verl_xpu_shim.contract import Defines
from verl_xpu_shim.contract import Parameters
from verl_xpu_shim.platform import on_xpu

CUDA_BACKENDS: Final = ("nccl", "nixl", "delta_sharded", "kimi_ckpt_engine", "mooncake")
"""verl's own checkpoint engines that allocate on ``cuda`` or go through cupy; a custom one may well work."""


def _fused_kernels(module: ModuleType, edit: Edit) -> None:
    def make(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def post_init(self: Any) -> None:
            backend = (self.fused_kernel_options or {}).get("impl_backend")
            if self.use_fused_kernels and backend == "triton" and on_xpu():
                raise ValueError(
                    "model.fused_kernel_options.impl_backend=triton: verl's Triton kernels are for CUDA alone (they "
                    "assert tensor.is_cuda and open NVTX ranges). On XPU set "
                    "actor_rollout_ref.model.fused_kernel_options.impl_backend=torch (model.fused_kernel_options."
                    "impl_backend in SFT), or use_fused_kernels=False."
                )
            original(self)

        return post_init

    edit.wrap(module.HFModelConfig, "__post_init__", make)


def _weight_transfer(module: ModuleType, edit: Edit) -> None:
    def make(original: Callable[..., None]) -> Callable[..., None]:
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            if self.backend in CUDA_BACKENDS and on_xpu():
                raise ValueError(
                    f"rollout.checkpoint_engine.backend={self.backend}: this weight transfer allocates on CUDA "
                    "devices. On XPU trainer and rollout have to share their devices: set "
                    "actor_rollout_ref.rollout.checkpoint_engine.backend=naive and a colocated trainer (not "
                    "separate_async, fully_async or one_step_off)."
                )

        return init

    edit.wrap(module.CheckpointEngineConfig, "__init__", make)


TARGETS: Final = (
    Target(
        "verl.workers.config.model",
        _fused_kernels,
        (Parameters("HFModelConfig.__post_init__", ("self",)),),
    ),
    Target("verl.workers.config.rollout", _weight_transfer, (Defines(("CheckpointEngineConfig",)),)),
)
