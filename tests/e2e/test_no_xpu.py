"""On a host without XPU nothing changes: the first promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import torchrun

#: Import every module that could be patched, then describe the code of everything in it.
FINGERPRINTS = """
import hashlib, importlib, inspect, json, sys, types
from xpu_sitecustomize.watchlist import WATCHLIST

def fingerprint(code):
    constants = [fingerprint(each) if isinstance(each, types.CodeType) else repr(each) for each in code.co_consts]
    return hashlib.sha256(repr((code.co_code, constants, code.co_names, code.co_filename)).encode()).hexdigest()

def functions(space, prefix, depth=0):
    for name, value in sorted(vars(space).items()):
        if inspect.isclass(value) and value.__module__ == prefix.partition(":")[0] and not depth:
            yield from functions(value, f"{prefix}.{name}", 1)
        value = getattr(value, "__func__", value)
        if isinstance(value, types.FunctionType):
            assert not hasattr(value, "__verl_xpu_shim__"), (prefix, name)
            yield f"{prefix}.{name}", fingerprint(value.__code__)

import verl, torch
found, imported = {}, []
for module in WATCHLIST:
    try:
        importlib.import_module(module)
    except (ImportError, ValueError):
        continue
    imported.append(module)
    found.update(functions(sys.modules[module], module + ":"))
from verl.plugin.platform.platform_manager import PlatformRegistry
from verl.workers.engine.base import EngineRegistry
found["platforms"] = sorted(PlatformRegistry.registered_names())
found["engines"] = repr(EngineRegistry._engines)
found["all_reduce"] = torch.distributed.all_reduce is torch.distributed.distributed_c10d.all_reduce
print(json.dumps({"found": found, "imported": imported}))
"""

RANK = """
import hashlib, sys
import torch, torch.distributed as dist
if sys.argv[1] == "verl":
    import verl.utils.distributed
dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
digest = hashlib.sha256()
for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
    for shape in ((), (7,), (64, 33)):
        for op in (dist.ReduceOp.AVG, dist.ReduceOp.SUM, dist.ReduceOp.MAX):
            tensor = torch.randn(shape).to(dtype)
            work = dist.all_reduce(tensor, op, async_op=True)
            work.wait()
            digest.update(tensor.double().numpy().tobytes() + type(work).__name__.encode())
            half = torch.empty(4, dtype=dtype)
            dist.reduce_scatter_single(half, torch.randn(8).to(dtype), op)
            digest.update(half.double().numpy().tobytes())
print("DIGEST", dist.get_rank(), digest.hexdigest(), "verl" in sys.modules)
dist.destroy_process_group()
"""


def without_emulation(**environment: str) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("XPU_EMU")} | environment


def test_every_symbol_that_could_be_patched_is_the_original() -> None:
    def run(switch: str) -> dict[str, object]:
        # The hash seed, for sets among the constants have an order.
        env = without_emulation(VERL_XPU_SHIM=switch, PYTHONHASHSEED="0")
        command = [sys.executable, "-c", FINGERPRINTS]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        result: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
        return result

    on, off = run("1"), run("0")
    assert len(on["imported"]) >= 15  # type: ignore[arg-type]
    assert on == off


def test_every_capability_says_that_there_is_no_xpu(tmp_path: Path) -> None:
    log = tmp_path / "trace.jsonl"
    code = "import verl.utils.distributed, verl.workers.config.model"
    subprocess.run([sys.executable, "-c", code], env=without_emulation(VERL_XPU_SHIM_TRACE=str(log)), check=True)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    outcomes = [event for event in events if event.get("capability")]
    assert {event["capability"] for event in outcomes} >= {"platform", "reduce_avg", "attention_default"}
    assert {(event["event"], event["detail"]) for event in outcomes} == {("skipped", "no-xpu")}


@pytest.mark.parametrize("imports", ["torch", "verl"])
def test_two_gloo_ranks_get_the_same_bytes_with_and_without_the_shim(tmp_path: Path, imports: str) -> None:
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    def run(switch: str) -> list[str]:
        env = without_emulation(VERL_XPU_SHIM=switch, OMP_NUM_THREADS="1")
        lines = [rank[-1] for rank in torchrun.run(2, str(script), imports, env=env)]
        assert [line.split()[3] for line in lines] == [str(imports == "verl")] * 2
        return lines

    assert run("1") == run("0")


def test_an_interpreter_start_loads_nothing_of_anybody() -> None:
    code = (
        "import sys; third = {'torch', 'verl', 'vllm', 'ray', 'numpy', 'importlib_metadata', 'verl_xpu_shim'};"
        "print(sorted(third & set(sys.modules)), [getattr(finder, '__name__', '') for finder in sys.meta_path])"
    )
    env = without_emulation(VERL_XPU_SHIM="0")
    off = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    env = without_emulation()
    on = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert on.startswith("[] ['_xpu_sitecustomize'")
    assert off.startswith("[] [")
    assert "xpu_sitecustomize" not in off
