"""The command line: exit statuses, plain tables, JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from verl_xpu_shim.capability import NAMES


def shim(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    command = [sys.executable, "-m", "verl_xpu_shim", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A job of four processes: two ranks that patch the same, one that fails, one idle; a torn line."""

    def line(t: float, pid: int, event: str, **fields: object) -> str:
        return json.dumps({"t": t, "pid": pid, "event": event, **fields})

    argv = ["/venv/bin/python", "-u", "-m", "verl.trainer.sft_trainer", "x=1"]
    lines = []
    for pid in (10, 11):
        lines.append(line(pid, pid, "start", rank=pid - 10, detail={"argv": argv, "how": "pth"}))
        for name in ("platform", "reduce_avg", "platform"):
            lines.append(line(pid + 0.5, pid, "applied", rank=pid - 10, capability=name, module="m", detail=["a -> b"]))
    lines.append(line(5, 12, "start", detail={"argv": ["python", "/ray/default_worker.py"], "how": "pth"}))
    lines.append(line(6, 12, "failed", capability="numa_affinity", module="<m>", detail="OSError: no"))
    lines.append(line(7, 13, "start", detail={"argv": ["python", "-c", "pass"], "how": "pth"}))
    (tmp_path / "trace.jsonl").write_text("\n".join([*lines, '{"t": 1, "pid"', ""]))
    return tmp_path / "trace.jsonl"


@pytest.mark.parametrize("arguments", [["nonsense"], ["trace"], ["check", "--site"], ["status", "--extra"], []])
def test_bad_usage_is_two(arguments: list[str]) -> None:
    done = shim(*arguments)
    assert done.returncode == 2
    assert done.stderr


def test_status_tells_versions_the_way_in_and_every_contract() -> None:
    done = shim("status")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "in this process, by way of pth" in done.stdout
    assert [line.split()[0] for line in done.stdout.splitlines()[-len(NAMES) :]] == list(NAMES)
    report = json.loads(shim("status", "--json", VERL_XPU_SHIM_DISABLE="platform").stdout)
    assert report["versions"]["torch"].startswith("2.13.0")
    assert report["entered"] == "pth"
    assert {row["capability"] for row in report["contracts"]} == set(NAMES)
    assert [name for name, row in report["capabilities"].items() if not row["enabled"]] == ["platform"]


def test_status_where_the_shim_is_off_is_one() -> None:
    done = shim("status", VERL_XPU_SHIM="0")
    assert done.returncode == 1
    assert "not in this process" in done.stdout


def test_path_is_the_folder_of_a_sitecustomize() -> None:
    folder = Path(shim("path").stdout.strip())
    assert (folder / "sitecustomize.py").is_file()
    assert json.loads(shim("path", "--json").stdout) == str(folder)


def test_trace_groups_processes_that_patched_the_same(log: Path) -> None:
    done = shim("trace", str(log))
    assert done.returncode == 1  # something failed
    two = next(line for line in done.stdout.splitlines() if "sft_trainer" in line)
    assert two.split()[:2] == ["2", "0,1"]
    assert "platform, reduce_avg" in two
    assert "WRONG: numa_affinity" in done.stdout
    assert "nothing to patch: -c pass" in done.stdout
    assert "1 line(s) are no trace events" in done.stderr


def test_trace_as_json_is_one_row_a_process(log: Path) -> None:
    rows = json.loads(shim("trace", str(log), "--json").stdout)
    assert [row["pid"] for row in rows] == [12, 13, 10, 11]
    assert rows[2] == {**rows[2], "rank": 0, "how": "pth", "applied": ["platform", "reduce_avg"], "wrong": []}


def test_trace_as_a_page_is_self_contained_and_escapes(log: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = shim("trace", str(log), "--html", str(page))
    assert "11 events of 4 processes" in done.stdout
    text = page.read_text()
    assert "&lt;m&gt;" in text
    assert "<m>" not in text
    assert "http" not in text
    assert text.count("<tr class=") == 11


def test_trace_of_a_file_that_is_not_there_is_bad_usage(tmp_path: Path) -> None:
    done = shim("trace", str(tmp_path / "absent"))
    assert done.returncode == 2
    assert "absent" in done.stderr
