#!/usr/bin/env bash
# The tests of the vLLM capability against stock vLLM on CPU, in an environment of their own. About seven minutes on two
# cores, half of them for the environment; arguments go to pytest. What needs GPUs is in tests/gpu.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/vllm_env.sh
exec .venv-vllm/bin/python -m pytest tests/host_embedding tests/level_zero/test_vllm_numa_bind.py "$@"
