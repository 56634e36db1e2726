#!/usr/bin/env bash
# The environment of the vLLM tests: stock vLLM 0.30.0 on CPU torch, in a venv of its own, .venv-vllm.
# Cached: does nothing while this script and the interpreter are what they were. About two minutes and 2 GiB.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
python=${PYTHON:-python3}
stamp=$(cat "$0" setup.cfg pyproject.toml | sha256sum)-$("$python" -c 'import sys; print(sys.version)')
if [ "$(cat $venv/stamp 2>/dev/null)" = "$stamp" ]; then
    exit 0
fi

rm -rf $venv
"$python" -m venv $venv
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
$pip torch==2.13.0
# Its dependencies are CUDA's, for the most part: what the CPU tests import is named here.
$pip --no-deps vllm==0.30.0
$pip numpy regex psutil pyzmq requests cbor2 'transformers>=5.10.4' aiohttp pydantic pybase64 cachetools msgspec \
    cloudpickle uvloop py-cpuinfo prometheus_client pillow sniffio distro jiter httpx einops safetensors importlib-metadata pytest
$pip --no-deps openai==2.25.0 openai-harmony==0.0.8 'fastapi<0.137,>=0.133' starlette partial_json_parser \
    xgrammar==0.2.8 apache-tvm-ffi==0.1.11 'llguidance<1.8,>=1.7' compressed-tensors==0.17.0 loguru
$pip 'setuptools>=64' wheel
$pip --no-build-isolation --editable .
echo "$stamp" >$venv/stamp
