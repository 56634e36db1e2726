"""What is watched once verl or vLLM starts to be imported: module name -> capabilities, applied in this order."""

from __future__ import annotations

from typing import Final

WATCHLIST: Final[dict[str, tuple[str, ...]]] = {
    "tensordict.base": ("host_copy",),
    "torch.distributed.distributed_c10d": ("reduce_avg",),
    "torch.distributed.fsdp._fully_shard._fsdp_collectives": ("fsdp2_reduce_avg",),
    "verl.models.transformers.monkey_patch": ("attention_default",),
    "verl.plugin.platform.platform_base": ("platform",),
    "verl.plugin.platform.platform_manager": ("platform",),
    "verl.single_controller.base.worker": ("ray_devices",),
    "verl.single_controller.ray.base": ("ray_devices",),
    "verl.trainer.ppo.ray_trainer": ("dist_profiler",),
    "verl.trainer.ppo.v1.trainer_base": ("dist_profiler",),
    "verl.utils.attention_utils": ("attention_utils",),
    "verl.utils.checkpoint.fsdp_checkpoint_manager": ("host_copy",),
    "verl.utils.distributed": ("numa_affinity",),
    "verl.utils.flops_counter": ("dist_profiler",),
    "verl.utils.fsdp_utils": ("host_copy",),
    "verl.utils.model": ("attention_default",),
    "verl.utils.profiler.config": (
        "rollout_profiler",
        "dist_profiler",
    ),
    "verl.utils.profiler.nvtx_profile": ("profiler_markers",),
    "verl.utils.profiler.performance": (
        "profiler_markers",
        "dist_profiler",
    ),
    "verl.utils.profiler.profile": (
        "dist_profiler",
        "profiler_markers",
    ),
    "verl.utils.profiler.torch_profile": ("dist_profiler",),
    "verl.utils.ray_utils": ("ray_devices",),
    "verl.workers.config.model": (
        "attention_default",
        "platform",
    ),
    "verl.workers.config.rollout": ("platform",),
    "verl.workers.engine.fsdp.transformer_impl": ("fsdp_engine",),
    "verl.workers.rollout.sglang_rollout.async_sglang_server": ("rollout_profiler",),
    "verl.workers.rollout.trtllm_rollout.trtllm_async_server": ("rollout_profiler",),
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer": ("weight_sync",),
    "verl.workers.rollout.vllm_rollout.vllm_async_server": (
        "ray_devices",
        "rollout_profiler",
        "weight_sync",
    ),
    "verl.workers.rollout.vllm_rollout.vllm_rollout": ("weight_sync",),
    "vllm.config.profiler": ("rollout_profiler",),
    "vllm.envs": ("host_embedding",),
    "vllm.lora.layers.vocab_parallel_embedding": ("host_embedding",),
    "vllm.lora.layers.vocal_parallel_embedding": ("host_embedding",),
    "vllm.model_executor.layers.vocab_parallel_embedding": ("host_embedding",),
    "vllm.model_executor.model_loader.utils": ("host_embedding",),
    "vllm.platforms.xpu": ("host_embedding",),
    "vllm.profiler.wrapper": ("rollout_profiler",),
    "vllm.utils.numa_utils": ("numa_affinity",),
    "vllm.v1.worker.cpu_worker": ("rollout_profiler",),
    "vllm.v1.worker.gpu_worker": ("rollout_profiler",),
    "vllm.v1.worker.xpu_worker": ("rollout_profiler",),
}
