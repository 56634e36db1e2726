# What a vLLM rollout engine on a CPU, beside emulated devices, needs; sourced by scripts/grpo/job.sh.
# None of it is for the shim, and none of it is needed on a machine with Intel GPUs.

# vLLM would ask the emulated device for kernels that it hasn't got. Small caches, no pinning of threads.
export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1
# There is no Triton for the emulated device, and on a CPU vLLM would compile for 17 s before its first token.
export TORCHDYNAMO_DISABLE=1

# vLLM has a sleep mode on CUDA, ROCm and XPU only.
cpu_rollout=(+actor_rollout_ref.rollout.enable_sleep_mode=False)
