#!/usr/bin/env bash
# Stock verl does reinforcement learning (GRPO) on two emulated XPUs, with real vLLM rollouts on the CPU.
#
#   scripts/grpo.sh [STEPS [USE_V1...]]     ends with "grpo: ok", or with an error and a non-zero status
#
# Without arguments 8 steps, with trainer.use_v1=true, then false; "scripts/grpo.sh 2 true" is the shortest form.
#
# PYTHON names the interpreter for a new .venv-grpo (3.10 to 3.12). What it writes is in .cache/grpo.
# What the rollout engine needs because it runs on a CPU is in tests/cpu_rollout, and in no other place.
set -euo pipefail
cd "$(dirname "$0")/.."

steps=${1:-8}
if [ $# -gt 1 ]; then trainers=("${@:2}"); else trainers=(true false); fi
export VENV=.venv-grpo
out=$PWD/.cache/grpo
began=$SECONDS

say() { printf 'grpo: [%3ds] %s\n' $((SECONDS - began)) "$*"; }
die() {
  echo "grpo: FAILED: $*" >&2
  exit 1
}
trap 'die "the command on line $LINENO"' ERR

say "environment: $VENV with torch (CPU), verl 0.9.1, vLLM 0.30.0 (CPU), the shim and the emulated device"
scripts/setup.sh --rollout
if [ ! -f "$out/val.parquet" ] || [ scripts/tiny_model.py -nt "$out/val.parquet" ] || [ scripts/grpo/prompts.py -nt "$out/val.parquet" ]; then
  say "a tiny model, and sums as prompts"
  mkdir -p "$out"
  for script in scripts/tiny_model.py scripts/grpo/prompts.py; do
    "$VENV/bin/python" $script "$out" 2>"$out/model.log" || { cat "$out/model.log" >&2; die "$script"; }
  done
fi

shared_memory() { find /dev/shm \( -name 'psm_*' -o -name 'verl_weights_*' \) | sort; }

for use_v1 in "${trainers[@]}"; do
  job=use_v1-$use_v1
  say "main_ppo, $steps steps, trainer.use_v1=$use_v1 (about $((75 + 4 * steps)) s)"
  before=$(shared_memory)
  rm -f "$out/$job.trace"
  VERL_XPU_SHIM_TRACE=$out/$job.trace scripts/grpo/job.sh $job trainer.use_v1=$use_v1 trainer.total_training_steps=$steps || {
    tail -n 30 "$out/$job/log" >&2
    die "$job: see $out/$job/log"
  }
  "$VENV/bin/python" scripts/grpo/steps.py "$out/$job/log" "$steps" || die "$job: see $out/$job/log"
  left=$(comm -13 <(echo "$before") <(shared_memory))
  [ -z "$left" ] || die "$job left shared memory behind:" $left
done

say "which process patched what (verl-xpu-shim trace)"
"$VENV/bin/verl-xpu-shim" trace "$out/use_v1-${trainers[0]}.trace"
say "done"
echo "grpo: ok"
