#!/usr/bin/env bash
# Every test, ruff and mypy; sets up what is missing first. Arguments go to pytest: scripts/test.sh tests/unit -k trace
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh --tests
bin=${VENV:-.venv}/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
exec "$bin/python" -m pytest -n 2 --dist worksteal "$@"
