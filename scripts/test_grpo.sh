#!/usr/bin/env bash
# The tests that need verl and vLLM in one environment, .venv-grpo; what they run is what scripts/grpo.sh runs. About
# half an hour on two cores, nearly all of it whole runs of verl: `scripts/test_grpo.sh -m "not job"` leaves those out,
# and takes five. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/grpo.sh 2 true
exec .venv-grpo/bin/python -m pytest tests/rl tests/emulated/test_rollout_mask.py "$@"
