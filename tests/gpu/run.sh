#!/usr/bin/env bash
# Everything that needs two NVIDIA GPUs, for about five minutes: the sentinel over both all-reduces, the faults that must
# make it fail, the benchmark, a whole model. Stock vLLM and the shim must be importable. JSON and logs go to folder $1.
set -u
cd "$(dirname "$0")/../.."
out=${1:?usage: tests/gpu/run.sh FOLDER}
mkdir -p "$out"
export VLLM_NO_USAGE_STATS=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0 VLLM_ALLREDUCE_USE_FLASHINFER=0 VLLM_USE_FLASHINFER_SAMPLER=0
export PYTHONUNBUFFERED=1 WHOLE_MODEL_ARGUMENTS=${WHOLE_MODEL_ARGUMENTS-'{"attention_backend": "TRITON_ATTN"}'}
torchrun=(python3 -m torch.distributed.run --nproc-per-node 2)
summary=$out/summary.txt
: >"$summary"

step() { # step NAME WANTED_STATUS COMMAND…
    local name=$1 wanted=$2 began=$SECONDS
    shift 2
    timeout 240 "$@" >"$out/$name.log" 2>&1
    local status=$?
    local verdict=ok
    [ $status = "$wanted" ] || verdict=UNEXPECTED
    echo "$verdict $name: status $status, wanted $wanted, $((SECONDS - began)) s" | tee -a "$summary"
}

models() { # models GPU NAME [OPTION…]
    local gpu=$1 name=$2 where
    shift 2
    for where in host device; do
        CUDA_VISIBLE_DEVICES=$gpu step "$name-$where" 0 python3 tests/gpu/whole_model.py $where "$@" --json "$out/$name-$where.json"
    done
}

models 0 model &
{
    models 1 model-eager --eager
    CUDA_VISIBLE_DEVICES=1 step model-sleep 0 python3 tests/gpu/whole_model.py host --eager --sleep --json "$out/model-sleep.json"
} &
for path in custom nccl; do
    REPLAY_SENTINEL_AR=$path REPLAY_SENTINEL_OUT=$out/sentinel-$path \
        step "sentinel-$path" 0 "${torchrun[@]}" -m verl_xpu_shim probe replay-sentinel
done
for fault in detached freed-ids device-copy; do
    REPLAY_SENTINEL_OUT=$out/fault-$fault step "fault-$fault" 1 "${torchrun[@]}" tests/gpu/sentinel_fault.py $fault
done
wait
step embedding 0 python3 scripts/benchmarks/embedding.py --json "$out/embedding.json"
python3 - "$out" <<'P' | tee -a "$summary"
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
for mode in ("", "eager-"):
    try:
        host, device = (json.loads((out / f"model-{mode}{where}.json").read_text()) for where in ("host", "device"))
    except FileNotFoundError as missing:
        print("no comparison:", missing)
        continue
    less = device["weights"]["loading_took_bytes"] - host["weights"]["loading_took_bytes"]
    print(f"{host['mode']}: same tokens {host['tokens'] == device['tokens']}; loading took {less} bytes less, "
          f"table {host['weights']['table_bytes']}; update with the table on the host {host['update']}, "
          f"on the device {device['update']}")
print("sleep levels:", json.loads((out / "model-sleep.json").read_text())["sleep"])
P
