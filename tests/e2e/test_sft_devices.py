"""`python -m verl.trainer.sft_trainer_ray` with four emulated devices: each rank on its own device, or a refusal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def train(tiny: Path, out: Path, ranks: int, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ZE_", "ONEAPI_", "RAY_", "VERL_", "XPU_EMU"))}
    ours = {
        "XPU_EMU": "1",
        "XPU_EMU_DEVICE_COUNT": "4",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(Path(__file__).parent),
        "VERL_USE_EXTERNAL_MODULES": "report_devices",
        "REPORT_DEVICES": str(out),
        "RAY_OVERRIDE_RESOURCES": '{"CPU": 64}',  # verl asks for ten a worker
        "RAY_NUM_PRESTART_PYTHON_WORKERS": "0",
        "RAY_memory_monitor_refresh_ms": "0",
        "HF_HUB_OFFLINE": "1",
    }
    options = [
        f"data.train_files={tiny}/train.parquet",
        f"model.path={tiny}/model",
        f"trainer.n_gpus_per_node={ranks}",
        f"trainer.default_local_dir={out}/checkpoints",
        "data.train_batch_size=8",
        "data.micro_batch_size_per_gpu=2",
        "data.max_token_len_per_gpu=256",
        "data.max_length=128",
        "data.num_workers=0",
        "trainer.total_training_steps=1",
        "trainer.save_freq=-1",
        "trainer.resume_mode=disable",
        "trainer.logger=[console]",
    ]
    command = [sys.executable, "-m", "verl.trainer.sft_trainer_ray", *options]
    env = clean | ours | environment
    return subprocess.run(command, cwd=out, env=env, capture_output=True, text=True, timeout=500)  # Hydra writes there


WITHOUT_DPCTL = {"XPU_EMU_DPCTL": "0", "RAY_OVERRIDE_RESOURCES": '{"CPU": 64, "GPU": 4}'}


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ZE_AFFINITY_MASK": "2,3", "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK": "1"}, [2, 3]),
        (WITHOUT_DPCTL, [0, 1, 2, 3]),
        (WITHOUT_DPCTL | {"ZE_AFFINITY_MASK": "1,3", "RAY_OVERRIDE_RESOURCES": '{"CPU": 64, "GPU": 2}'}, [1, 3]),
    ],
)
def test_each_rank_trains_on_its_own_device(
    tiny: Path, tmp_path: Path, environment: dict[str, str], devices: list[int]
) -> None:
    done = train(tiny, tmp_path, len(devices), **environment)
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    assert "train/loss:" in done.stdout
    found = [json.loads(file.read_text()) for file in sorted(tmp_path.glob("*.json"))]
    assert sorted(rank["physical"] for rank in found) == devices
    assert {rank["sees"] for rank in found} == {len(devices)}


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"XPU_EMU_DPCTL": "0"}, "Ray sees no GPU"),
        ({"ONEAPI_DEVICE_SELECTOR": "level_zero:0,1"}, "Unset ONEAPI_DEVICE_SELECTOR"),
    ],
)
def test_or_it_is_refused(tiny: Path, tmp_path: Path, environment: dict[str, str], said: str) -> None:
    done = train(tiny, tmp_path, 2, **environment)
    assert done.returncode != 0
    assert said in done.stdout + done.stderr
    assert not list(tmp_path.glob("*.json"))
