#!/usr/bin/env bash
# Stock verl on two emulated XPUs with nothing but the shim installed; then the same without it.
#
#   scripts/quickstart.sh       ends with "quickstart: ok", or with an error and a non-zero status
#
# PYTHON names the interpreter for a new .venv (3.10 to 3.12). What it writes is in .cache/quickstart.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/${VENV:-.venv}
out=$PWD/.cache/quickstart
began=$SECONDS

say() { printf 'quickstart: [%3ds] %s\n' $((SECONDS - began)) "$*"; }
die() {
  echo "quickstart: FAILED: $*" >&2
  exit 1
}
trap 'die "the command on line $LINENO"' ERR

say "environment: .venv with torch (CPU), verl 0.9.1, the shim and the emulated device"
scripts/setup.sh
mkdir -p "$out"
rm -f "$out"/*.log "$out"/trace.jsonl
if [ ! -f "$out/train.parquet" ] || [ scripts/tiny_model.py -nt "$out/train.parquet" ]; then
  say "a tiny model and data set"
  "$venv/bin/python" scripts/tiny_model.py "$out" 2>"$out/model.log" || { cat "$out/model.log" >&2; die "tiny_model.py"; }
fi

# The emulated devices, and a small machine's needs. None of it is an option of verl.
export XPU_EMU=1 OMP_NUM_THREADS=1 TRANSFORMERS_OFFLINE=1 HF_HUB_OFFLINE=1
export RAY_OVERRIDE_RESOURCES='{"CPU":32}' RAY_USAGE_STATS_ENABLED=0 RAY_DEDUP_LOGS=0
export VERL_XPU_SHIM_TRACE=$out/trace.jsonl

# What a person would type on any GPU: there is nothing here that is only for XPU.
options=(
  "data.train_files=$out/train.parquet" data.train_batch_size=8 data.micro_batch_size_per_gpu=2
  data.max_token_len_per_gpu=256 data.max_length=128 data.num_workers=0
  "model.path=$out/model" optim.lr=1e-3
  'trainer.logger=[console]' trainer.total_epochs=1 trainer.total_training_steps=4
  trainer.resume_mode=disable trainer.save_freq=-1 "trainer.default_local_dir=$out/checkpoints"
)

# train NAME DEVICES COMMAND...: run it, its output in NAME.log.
train() {
  # In the folder of outputs: Hydra leaves its own where it is started.
  (cd "$out" && XPU_EMU_DEVICE_COUNT=$2 timeout 300 "${@:3}" "${options[@]}") >"$out/$1.log" 2>&1
}
on_torchrun() { train "$1" "$2" "$venv/bin/torchrun" --standalone --nproc_per_node "$2" -m verl.trainer.sft_trainer "engine.strategy=$3"; }
on_ray() { train "$1" "$2" "$venv/bin/python" -m verl.trainer.sft_trainer_ray "engine.strategy=$3" "trainer.n_gpus_per_node=$2"; }
must() { "$@" || { tail -n 30 "$out/$2.log" >&2; die "$2: see $out/$2.log"; }; }

say "torchrun, 1 device, fsdp2 (what the others are compared with)"
must on_torchrun one-device 1 fsdp2
say "torchrun, 2 devices, fsdp2"
must on_torchrun torchrun-fsdp2 2 fsdp2
say "torchrun, 2 devices, fsdp"
must on_torchrun torchrun-fsdp 2 fsdp
say "Ray, 2 devices, fsdp2"
must on_ray ray-fsdp2 2 fsdp2

say "losses"
"$venv/bin/python" scripts/compare_losses.py "$out"/{one-device,torchrun-fsdp2,torchrun-fsdp,ray-fsdp2}.log
say "which process patched what (verl-xpu-shim trace)"
"$venv/bin/verl-xpu-shim" trace "$VERL_XPU_SHIM_TRACE"

say "the same with VERL_XPU_SHIM=0"
if VERL_XPU_SHIM=0 on_torchrun without-shim 2 fsdp2; then
  die "without the shim it trained all the same: this run proves nothing"
fi
grep -m 1 -E '^(\[rank[0-9]+\]: )?[A-Za-z]*(Error|Exception): ' "$out/without-shim.log" | sed 's/^/  what you would see: /' ||
  die "without the shim it failed, and not with a Python error: see $out/without-shim.log"

say "done"
echo "quickstart: ok"
