#!/usr/bin/env bash
# The environment of the vLLM tests: stock vLLM 0.30.0 on CPU torch, in a venv of its own, .venv-vllm. About three minutes
# and 2 GiB; does nothing where it is there already. PYTHON names the interpreter (default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv-vllm
python=${PYTHON:-python3}
pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"

wanted="$(cksum <"$0") $("$python" -c 'import sys; print(sys.version)')"
if [ "$(cat $venv/.done-vllm 2>/dev/null)" != "$wanted" ]; then
  rm -rf $venv
  "$python" -m venv $venv
  $pip torch==2.13.0
  # vLLM's dependencies are CUDA's, for the most part: what the CPU tests import is named here.
  $pip --no-deps vllm==0.30.0
  $pip numpy regex psutil pyzmq requests cbor2 'transformers>=5.10.4' aiohttp pydantic pybase64 cachetools msgspec \
    cloudpickle uvloop py-cpuinfo prometheus_client pillow sniffio distro jiter httpx einops safetensors pytest
  $pip --no-deps openai==2.25.0 openai-harmony==0.0.8 'fastapi<0.137,>=0.133' starlette partial_json_parser \
    xgrammar==0.2.8 apache-tvm-ffi==0.1.11 'llguidance<1.8,>=1.7' compressed-tensors==0.17.0 loguru
  $pip 'setuptools>=64' wheel
  echo "$wanted" >$venv/.done-vllm
fi

# Again when what the build reads has changed, as in setup.sh.
shim="$PWD $(cat setup.cfg pyproject.toml src/_startup_files.py xpu_sitecustomize/startup/*.p* | cksum)"
if [ "$(cat $venv/.done-shim 2>/dev/null)" != "$shim" ]; then
  $pip --no-build-isolation --editable .
  echo "$shim" >$venv/.done-shim
fi
