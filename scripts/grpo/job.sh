#!/usr/bin/env bash
# One run of stock verl, reinforcement learning with GRPO: two emulated XPUs, two vLLM rollout servers.
#
#   scripts/grpo/job.sh NAME [OPTION OF VERL]...     output in .cache/grpo/NAME/log, exit status of verl
#
# scripts/grpo.sh has made the environment, the model and the data that this needs.
set -euo pipefail
cd "$(dirname "$0")/../.."

name=$1
cache=$PWD/.cache/grpo
out=$cache/$name
venv=$PWD/${VENV:-.venv-grpo}
source tests/cpu_rollout/environment.sh

# The emulated devices, and a small machine's needs. None of it is an option of verl.
export XPU_EMU=1 XPU_EMU_DEVICE_COUNT=${XPU_EMU_DEVICE_COUNT:-2} OMP_NUM_THREADS=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
export RAY_OVERRIDE_RESOURCES='{"CPU":64}' RAY_USAGE_STATS_ENABLED=0 RAY_DEDUP_LOGS=0
# A Ray cluster of its own. Its folder holds sockets, whose paths mustn't be long.
RAY_TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/grpo.XXXX")
export RAY_ADDRESS=local RAY_TMPDIR

# vLLM's message queues stay behind in shared memory, on any device: Ray kills a server together with the process that
# would remove them. What came during this run, and no process maps any longer, goes.
queues() { find /dev/shm -name 'psm_*' | sort; }
before=$(queues)
clean_up() {
  local queue tries
  for queue in $(comm -13 <(echo "$before") <(queues)); do
    for tries in 1 2 3 4 5; do
      cat /proc/[0-9]*/maps 2>/dev/null | grep -q "$queue" || { rm -f "$queue"; break; }
      sleep 1
    done
  done
  rm -rf "$RAY_TMPDIR"
}
trap clean_up EXIT

# What a person would type on any GPU: there is nothing here that is only for XPU.
options=(
  algorithm.adv_estimator=grpo
  "data.train_files=$cache/train.parquet" "data.val_files=$cache/val.parquet" data.train_batch_size=8
  data.max_prompt_length=64 data.max_response_length=32 data.dataloader_num_workers=0 data.shuffle=False
  "actor_rollout_ref.model.path=$cache/model"
  actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.optim.lr=1e-3 actor_rollout_ref.actor.use_kl_loss=True
  actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4
  actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4
  actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=4 actor_rollout_ref.rollout.tensor_model_parallel_size=1
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 actor_rollout_ref.rollout.enforce_eager=True
  actor_rollout_ref.rollout.max_model_len=128 actor_rollout_ref.rollout.max_num_seqs=32
  actor_rollout_ref.rollout.max_num_batched_tokens=512 actor_rollout_ref.rollout.gpu_memory_utilization=0.1
  actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16
  actor_rollout_ref.rollout.agent.num_workers=1 reward.num_workers=1
  transfer_queue.backend.SimpleStorage.num_data_storage_units=1
  "reward.custom_reward_function.path=$PWD/scripts/grpo/reward.py"
  'trainer.logger=[console]' "trainer.n_gpus_per_node=$XPU_EMU_DEVICE_COUNT" trainer.total_training_steps=2
  trainer.resume_mode=disable trainer.save_freq=-1 trainer.test_freq=-1 trainer.val_before_train=False
  "trainer.default_local_dir=$out/checkpoints"
)

rm -rf "$out"
mkdir -p "$out"
cd "$out"  # Hydra leaves its own files where it is started
trap 'kill "$verl"; wait "$verl"' TERM INT
timeout --kill-after=20 "${JOB_TIMEOUT:-900}" "$venv/bin/python" -m verl.trainer.main_ppo "${options[@]}" "${cpu_rollout[@]}" "${@:2}" >log 2>&1 &
verl=$!
wait "$verl"
