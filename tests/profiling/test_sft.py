"""verl's SFT trainer on two emulated XPUs with ``profiler.tool=vtune``, as a user starts it; a real ITT collector."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import itt_collector
import torchrun
from emulated_xpu.harness import environment as emulated_environment

STEPS, PROFILED = 4, (2, 3)


def train(tiny: Path, out: Path, log: Path, **environment: str) -> tuple[int, list[str], str]:
    options = [
        *("profiler.enable=True", "profiler.tool=vtune", "profiler.all_ranks=True"),
        f"trainer.profile_interval=[{PROFILED[0]},{PROFILED[1]}]",
        *(f"data.train_files={tiny}/train.parquet", f"model.path={tiny}/model", "data.num_workers=0"),
        *("data.train_batch_size=8", "data.micro_batch_size_per_gpu=2", "data.max_token_len_per_gpu=256"),
        *("data.max_length=128", "engine.strategy=fsdp2", "trainer.logger=[console]", "trainer.save_freq=-1"),
        *(f"trainer.total_training_steps={STEPS}", "trainer.total_epochs=1", "trainer.resume_mode=disable"),
        f"trainer.default_local_dir={out}/checkpoints",
    ]
    variables = {
        **itt_collector.environment(log, start_paused=True),
        "PYTHONPATH": str(Path(__file__).parent),
        "VERL_USE_EXTERNAL_MODULES": "outside_stages",
        "VERL_XPU_SHIM_MARKERS": f"itt,chrome:{out / 'markers'}",
        "HF_HUB_OFFLINE": "1",
        **environment,
    }
    env = emulated_environment(2, **variables)
    return torchrun.launch(2, "-m", "verl.trainer.sft_trainer", *options, env=env, cwd=out, timeout=500)


def test_profiled_steps_of_a_run(tiny: Path, tmp_path: Path, log: Path) -> None:
    status, outputs, errors = train(tiny, tmp_path, log)
    assert status == 0, errors[-6000:]
    assert f"step:{STEPS} " in outputs[0]

    calls = itt_collector.read(log)
    pairs = itt_collector.ranges(calls)  # balanced
    ranks = {begin.pid for begin, _ in pairs}
    assert len(ranks) == 2
    profiled = PROFILED[1] - PROFILED[0] + 1
    stages = Counter((begin.pid, begin.domain, begin.name) for begin, _ in pairs if begin.name != "log")
    assert stages == {(pid, "verl", "train_batch"): profiled for pid in ranks}
    # Rank 0 logged each step, but the collector was to see those between start and stop alone.
    assert [begin.name for begin, _ in pairs].count("log") == profiled - 1
    for pid in ranks:
        mine = [call for call in calls if call.pid == pid]
        control = [(call.call, call.name) for call in mine if call.call in ("resume", "pause", "event")]
        assert control == [("resume", "-"), *[("event", "step")] * profiled, ("pause", "-")]
        resume, pause = (call.time for call in mine if call.call in ("resume", "pause"))
        assert all(resume < begin.time < end.time < pause for begin, end in pairs if begin.pid == pid)

    trace = tmp_path / "trace.json"
    merged = subprocess.run(
        [sys.executable, "-m", "verl_xpu_shim", "trace", "--merge", tmp_path / "markers", "-o", trace],
        check=True,
        capture_output=True,
        text=True,
    )
    assert "of 2 processes" in merged.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    tracks = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [re.sub(r" \(pid \d+\)", "", tracks[pid]) for pid in sorted(tracks)] == [
        "language_model rank 0",
        "language_model rank 1",
    ]
    found = Counter((tracks[event["pid"]].split(" (")[0], event["name"]) for event in events if event["ph"] == "X")
    assert found == {
        ("language_model rank 0", "train_batch"): profiled,
        ("language_model rank 1", "train_batch"): profiled,
        ("language_model rank 0", "log"): STEPS,  # a file has no pause
    }
    assert not any(event.get("args", {}).get("unfinished") for event in events)
    # One clock: the ranks' stages of one step overlap, as they wait for each other.
    stage = [event for event in events if event["name"] == "train_batch"]
    spans = sorted((event["ts"], event["ts"] + event["dur"], event["pid"]) for event in stage)
    for first, second in (spans[:2], spans[2:]):
        assert first[2] != second[2]
        assert second[0] < first[1]


def test_a_stage_that_raises_in_a_run(tiny: Path, tmp_path: Path, log: Path) -> None:
    status, _, errors = train(tiny, tmp_path, log, PROFILING_TEST_FAIL_AT="3")
    assert status != 0
    assert "LookupError: the stage's own" in errors
    pairs = itt_collector.ranges(itt_collector.read(log))  # the failed stage is closed, too
    stages = Counter(begin.pid for begin, _ in pairs if begin.name == "train_batch")
    assert len(stages) == 2
    assert max(stages.values()) == 2  # torchrun may have ended the other rank in the meantime
