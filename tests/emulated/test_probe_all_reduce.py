"""`verl-xpu-shim probe all-reduce` on emulated devices and without any."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def probe(*arguments: str, **environment: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "verl_xpu_shim", "probe", "all-reduce", *arguments]
    env = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200)
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout


def test_sums_and_averages_are_right_and_what_oneccl_makes_of_avg_is_told() -> None:
    status, text = probe("--json", XPU_EMU="1", XPU_EMU_DEVICE_COUNT="2")
    report = json.loads(text)
    assert status == 0, report
    assert report["ranks"] == 2
    assert [(check["name"], check["ok"]) for check in report["checks"]] == [
        ("SUM", True),
        ("AVG by oneCCL itself", False),
        ("AVG with the shim", True),
    ]
    assert "average operation is not supported" in report["checks"][1]["found"]


def test_without_the_capability_it_fails() -> None:
    status, text = probe(XPU_EMU="1", XPU_EMU_DEVICE_COUNT="2", VERL_XPU_SHIM_DISABLE="reduce_avg")
    assert status == 1
    assert "AVG with the shim: oneCCL: " in text


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ((), {}, "isn't an XPU build"),
        (("--ranks", "3"), {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": "2"}, "3 ranks need as many devices"),
        (("--timeout", "0.5"), {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": "2"}, "narrow|no answer within"),
    ],
)
def test_what_stops_it_is_named(arguments: tuple[str, ...], environment: dict[str, str], said: str) -> None:
    status, text = probe(*arguments, **environment)
    assert status == 1
    assert any(part in text for part in said.split("|"))
