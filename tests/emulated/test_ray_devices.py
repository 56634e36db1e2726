"""Which physical device each rank of a verl worker group ends on: real Ray, real verl, four emulated devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from dataclasses import field
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("ray_workers.py")
NOSET = "RAY_EXPERIMENTAL_NOSET_ZE_AFFINITY_MASK"


def start(env: dict[str, str], gpus: int | None, groups: list[dict[str, Any]], old_ray: Path | None = None) -> Any:
    """The report of `ray_workers.py`, or the text of its failure."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ZE_", "ONEAPI_", "RAY_", "VERL_", "XPU_EMU"))}
    emulation = {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": "4", "OMP_NUM_THREADS": "1"}
    quiet = {"RAY_memory_monitor_refresh_ms": "0", "RAY_DEDUP_LOGS": "0", "RAY_NUM_PRESTART_PYTHON_WORKERS": "0"}
    path = {"PYTHONPATH": str(old_ray)} if old_ray else {}
    child = subprocess.run(
        [sys.executable, SCRIPT, json.dumps({"gpus": gpus, "groups": groups})],
        env=clean | emulation | quiet | path | env,
        capture_output=True,
        text=True,
        timeout=280,
    )
    return json.loads(child.stdout.splitlines()[-1]) if child.returncode == 0 else child.stdout + child.stderr


@dataclass
class Case:
    """A configuration, and for each of its groups the physical devices that Ray hands out."""

    env: dict[str, str] = field(default_factory=dict)
    gpus: int | None = None
    sees: int = 4
    groups: tuple[dict[str, Any], ...] = ({"ranks": 2},)


CASES = {
    "dpctl": Case(groups=({"ranks": 4},)),
    "dpctl, keep the mask": Case({NOSET: "1"}),
    "dpctl, outer mask": Case({"ZE_AFFINITY_MASK": "2,3"}, sees=2),
    "dpctl, outer mask, keep it": Case({"ZE_AFFINITY_MASK": "2,3", NOSET: "1"}, sees=2),
    "dpctl, outer mask in another order": Case({"ZE_AFFINITY_MASK": "3,1"}, sees=2),
    "dpctl, fewer than there are": Case(gpus=2),
    "no dpctl": Case({"XPU_EMU_DPCTL": "0"}, gpus=4),
    "no dpctl, keep the mask": Case({"XPU_EMU_DPCTL": "0", NOSET: "1"}, gpus=4),
    "no dpctl, outer mask": Case({"XPU_EMU_DPCTL": "0", "ZE_AFFINITY_MASK": "2,3"}, gpus=2, sees=2),
    "no dpctl, outer mask, keep it": Case(
        {"XPU_EMU_DPCTL": "0", "ZE_AFFINITY_MASK": "2,3", NOSET: "1"}, gpus=2, sees=2
    ),
    "no dpctl, a mask for CUDA": Case({"XPU_EMU_DPCTL": "0", "CUDA_VISIBLE_DEVICES": "5,7"}, gpus=2),
}


def check(case: Case, report: Any) -> None:
    assert isinstance(report, list), report
    outer = case.env.get("ZE_AFFINITY_MASK")
    allowed = sorted(map(int, outer.split(","))) if outer else list(range(4))
    for group, spec in zip(report, case.groups, strict=True):
        for made in group:
            ranks = made["ranks"]
            assert len({rank["physical"] for rank in ranks}) == spec["ranks"], ranks
            for rank in ranks:
                assert rank["physical"] == physical(rank["ray"], case), rank
                assert rank["physical"] == allowed[rank["ordinal"]], rank
                assert rank["local_rank"] == rank["ordinal"]
                assert rank["sees"] == case.sees
                assert rank["mask"] == outer
                assert rank["selector"] is None
            # The emulated xccl refuses a rank that doesn't see every device of the group.
            assert made["sums"] == [sum(range(1, spec["ranks"] + 1))] * spec["ranks"]


def physical(ids: list[str], case: Case) -> int:
    """The device that Ray means by its id: an entry of the mask, or a position where it knows no mask."""
    (device,) = map(int, ids)
    if cuda := case.env.get("CUDA_VISIBLE_DEVICES"):
        return cuda.split(",").index(str(device))
    if case.env.get("XPU_EMU_DPCTL") == "0" and (outer := case.env.get("ZE_AFFINITY_MASK")):
        return sorted(map(int, outer.split(",")))[device]
    return device


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_rank_drives_the_device_that_ray_gave_it_and_sees_the_rest(case: Case) -> None:
    check(case, start(case.env, case.gpus, list(case.groups)))


def test_actors_that_share_a_device_group() -> None:
    """Fractions of a GPU (verl's `max_colocate_count`): two worker groups on the same two devices."""
    ((first, second),) = start({}, 2, [{"ranks": 2, "colocate": 2, "actors": 2}])
    assert [rank["physical"] for rank in first["ranks"]] == [rank["physical"] for rank in second["ranks"]]
    assert len({rank["physical"] for rank in first["ranks"]}) == 2
    assert first["sums"] == second["sums"] == [3, 3]


@pytest.mark.parametrize("outer", [None, "1,3"])
def test_a_worker_started_beside_another_drives_its_device(outer: str | None) -> None:
    """Through what verl hands from one to the other as a mask; "not set" is no mask, and none is written."""
    env = {"ZE_AFFINITY_MASK": outer} if outer else {}
    ((first, beside, unset),) = start(env, None, [{"ranks": 1, "beside": [None, "not set"]}])
    assert beside["ranks"][0]["physical"] == first["ranks"][0]["physical"]
    assert beside["ranks"][0]["ray"] == []
    assert {rank["mask"] for made in (first, beside, unset) for rank in made["ranks"]} == {outer}


@pytest.mark.parametrize(
    ("env", "gpus", "named"),
    [
        ({"XPU_EMU_DPCTL": "0"}, None, ["Ray sees no GPU", "dpctl", "+ray_kwargs.ray_init.num_gpus=N"]),
        ({"XPU_EMU_DPCTL": "0"}, 5, ["ray_init.num_gpus", "torch.xpu.device_count() is 4"]),
        (
            {"ONEAPI_DEVICE_SELECTOR": "level_zero:2,3"},
            2,
            ["ONEAPI_DEVICE_SELECTOR=level_zero:2,3", "ZE_AFFINITY_MASK"],
        ),
        ({"XPU_EMU_DPCTL": "0", "ZE_AFFINITY_MASK": ""}, 2, ["ZE_AFFINITY_MASK is set but empty"]),
        ({"XPU_EMU_DPCTL": "0", "ZE_AFFINITY_MASK": "0.0,0.1"}, 2, ["ZE_AFFINITY_MASK='0.0,0.1'", "whole devices"]),
    ],
)
def test_a_contradiction_is_an_error_that_names_the_variables(
    env: dict[str, str], gpus: int | None, named: list[str]
) -> None:
    said = start(env, gpus, [{"ranks": gpus or 2}])
    assert isinstance(said, str), said
    for text in named:
        assert text in said


@pytest.fixture(scope="session")
def old_ray(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The last Ray that narrows ONEAPI_DEVICE_SELECTOR."""
    folder = tmp_path_factory.mktemp("ray")
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, "ray==2.57.0"]
    subprocess.run(command, check=True)
    return folder


@pytest.mark.parametrize("outer", [None, "2,3"])
def test_an_older_ray(old_ray: Path, outer: str | None) -> None:
    case = Case({"ZE_AFFINITY_MASK": outer} if outer else {}, sees=2 if outer else 4)
    report = start(case.env, None, list(case.groups), old_ray)
    assert isinstance(report, list), report
    ranks = report[0][0]["ranks"]
    assert [rank["physical"] for rank in ranks] == [int(rank["ray"][0]) + (2 if outer else 0) for rank in ranks]
    assert {rank["selector"] for rank in ranks} == {None}
    assert {rank["sees"] for rank in ranks} == {case.sees}
    assert report[0][0]["sums"] == [3, 3]


OFF = {"VERL_XPU_SHIM_DISABLE": "ray_devices"}


def test_without_the_capability_ray_narrows_the_mask_and_the_collective_fails() -> None:
    said = start(OFF, 2, [{"ranks": 2}])
    assert isinstance(said, str), said
    assert "narrow device affinity mask" in said


def test_without_the_capability_and_dpctl_all_ranks_are_on_one_device() -> None:
    ((made,),) = start(OFF | {"XPU_EMU_DPCTL": "0"}, 4, [{"ranks": 2}])
    assert [rank["physical"] for rank in made["ranks"]] == [0, 0]
