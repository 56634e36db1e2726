"""``profiler.tool=vtune`` in verl's rollout servers and in vLLM."""

from __future__ import annotations

import json
import types
from pathlib import Path

import pytest

import itt_collector
import wheels
from verl_xpu_shim.capability import load
from verl_xpu_shim.contract import SourceView
from verl_xpu_shim.contract import broken
from verl_xpu_shim.contract import replace_constant

from .conftest import Child

ALLOWED = ("torch", "npu")
SERVERS = {
    "vllm_rollout.vllm_async_server": ("vLLMHttpServer", "__init__"),
    "sglang_rollout.async_sglang_server": ("SGLangHttpServer", "__init__"),
    "trtllm_rollout.trtllm_async_server": ("TRTLLMHttpServer", "_init_profiler_controller"),
}
VLLM = ("0.24.0", "0.30.0", "0.33.0")


@pytest.mark.parametrize("server", SERVERS)
def test_the_allowlist_in_the_source_of_each_server(verl: Path, server: str) -> None:
    name, constructor = SERVERS[server]
    source = SourceView(verl / "verl" / "workers" / "rollout" / f"{server.replace('.', '/')}.py")
    target = load("rollout_profiler").target(f"verl.workers.rollout.{server}")
    assert broken(target.contract, source) == []
    (code,) = source.code(f"{name}.{constructor}")
    replaced = replace_constant(code, ALLOWED, (*ALLOWED, "vtune"))
    assert [new for old, new in zip(code.co_consts, replaced.co_consts, strict=True) if old != new] == [
        (*ALLOWED, "vtune")
    ]
    assert (replaced.co_code, replaced.co_names) == (code.co_code, code.co_names)
    with pytest.raises(LookupError, match="2 times, not once"):
        replace_constant(code.replace(co_consts=(*code.co_consts, ALLOWED)), ALLOWED, ())


def test_an_allowlist_that_is_there_twice_is_drift(tmp_path: Path) -> None:
    changed = tmp_path / "server.py"
    changed.write_text(
        "class vLLMHttpServer:\n"
        "    def __init__(self): self.profiler_controller = ('torch', 'npu', 'new')\n"
        "    def start_profile(self): pass\n"
        "    def stop_profile(self): pass\n"
    )
    target = load("rollout_profiler").target("verl.workers.rollout.vllm_rollout.vllm_async_server")
    ((expected, found),) = broken(target.contract, SourceView(changed))
    assert "('torch', 'npu') 1 time(s)" in expected
    assert found == "0 time(s)"


def test_servers_take_vtune_and_drive_the_collector(
    child: Child, log: Path, verl: Path, core: Path, tmp_path: Path
) -> None:
    metadata = tmp_path / "vllm-0.24.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.24.0\n")
    code = f"import runpy; runpy.run_path({str(Path(__file__).with_name('servers.py'))!r}, run_name='__main__')"
    done = child(code, collect=True, start_paused=True, xpu=True, path=(verl, core, tmp_path))
    report = json.loads(done.stdout.splitlines()[-1])
    names = [name for name, _ in SERVERS.values()]
    for name in names:
        for tool, enable in (("vtune", True), ("vtune", False), ("torch", False)):
            driven = (tool, enable) == ("vtune", True) if name == names[0] and "0.9.0" not in str(verl) else None
            assert report[f"{name} {tool} {enable}"] == [tool, driven]  # 0.9.0 has no _should_profile
    assert report["engine"] == [["start", "stop"], [], []]
    assert report["plain"] == []
    assert report["arguments"] == [{"profiler_config": '{"profiler": "vtune"}'}, {}, {}, {}]
    assert "support torch and npu profiler" not in done.stderr + done.stdout
    assert "finish_hook" not in done.stdout  # the user's command is the trainer's to run

    calls = [(call.call, call.name) for call in itt_collector.read(log) if call.call != "attached"]
    labels = [*(f"{name} vtune True" for name in names), "engine without a profiler"]
    assert calls == [
        each for label in labels for each in (("resume", "-"), ("begin", label), ("end", "-"), ("pause", "-"))
    ]


@pytest.mark.parametrize("version", VLLM)
def test_the_source_of_each_vllm(version: str) -> None:
    root = wheels.sources(f"vllm=={version}")
    targets = [target for target in load("rollout_profiler").targets if target.module.startswith("vllm.")]
    assert len(targets) == 5
    for target in targets:
        assert broken(target.contract, SourceView(root / f"{target.module.replace('.', '/')}.py")) == [], target.module


VLLM_PYTHON = Path(__file__).parents[2] / ".venv-vllm" / "bin" / "python"
VLLM_CHILD = Path(__file__).with_name("vllm_worker.py")


@pytest.mark.parametrize("version", VLLM)
def test_vllm_workers(child: Child, log: Path, version: str) -> None:
    """Real vLLM of each version, as far as it goes without its compiled parts; the device alone is missing."""
    if not VLLM_PYTHON.exists():
        pytest.skip("needs what vLLM imports: scripts/vllm_env.sh makes an environment that has it")
    code = f"import runpy; runpy.run_path({str(VLLM_CHILD)!r}, run_name='__main__')"
    root = wheels.sources(f"vllm=={version}")
    done = child(
        code,
        collect=True,
        start_paused=True,
        python=VLLM_PYTHON,
        path=(root, wheels.installed("ittapi")),
        VLLM_TARGET_DEVICE="cpu",
    )
    report = types.SimpleNamespace(**json.loads(done.stdout.splitlines()[-1]))
    assert report.vllm.startswith(str(root))
    assert report.accepted == {"vtune": True, "torch": True, "bogus": False}
    assert report.undone == {"vtune": False, "torch": True, "bogus": False}
    assert report.config == "vtune"
    calls = [(call.call, call.name) for call in itt_collector.read(log) if call.call != "attached"]
    one = [("resume", "-"), ("begin", "execute_model"), ("end", "-"), ("pause", "-")]
    assert calls == one * 6  # the GPU, XPU and CPU workers, each started twice
