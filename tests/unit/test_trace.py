"""The trace log: whole lines from many processes, private, never through somebody else's link, never a crash."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

EMIT = """
import sys
from verl_xpu_shim import trace
for n in range(int(sys.argv[1])):
    trace.emit("applied", capability="platform", module="m", detail="x" * 3000)
"""


def emit(target: str | Path, lines: int = 1, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "VERL_XPU_SHIM_TRACE": str(target), **environment}
    return subprocess.run([sys.executable, "-c", EMIT, str(lines)], env=env, capture_output=True, text=True, check=True)


def events(path: Path, event: str = "applied") -> list[dict[str, object]]:
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["event"] == event]


def test_lines_of_twenty_processes_are_all_whole(tmp_path: Path) -> None:
    log = tmp_path / "trace.log"
    env = {**os.environ, "VERL_XPU_SHIM_TRACE": str(log)}
    running = [subprocess.Popen([sys.executable, "-c", EMIT, "50"], env=env) for _ in range(20)]
    assert [process.wait(60) for process in running] == [0] * 20
    found = events(log)
    assert len(found) == 20 * 50
    assert len({line["pid"] for line in found}) == 20
    assert all(line["detail"] == "x" * 3000 for line in found)


def test_a_line_has_the_documented_fields(tmp_path: Path) -> None:
    emit(tmp_path / "trace.log", RANK="3")
    (line,) = events(tmp_path / "trace.log")
    assert line == {**line, "event": "applied", "capability": "platform", "module": "m", "rank": 3}
    assert isinstance(line["t"], float)
    (last,) = events(tmp_path / "trace.log", "exit")
    assert isinstance(last["detail"], dict)
    assert last["detail"]["applied"] == 1


def test_the_path_is_filled_in(tmp_path: Path) -> None:
    emit(f"{tmp_path}/{{host}}-{{rank}}-{{pid}}-{{other}}.log", RANK="7")
    (log,) = tmp_path.iterdir()
    host, rank, pid, other = log.stem.rsplit("-", 3)
    assert host == os.uname().nodename
    assert (rank, other) == ("7", "{other}")
    assert int(pid) > 0


def test_a_new_file_is_private(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        emit(tmp_path / "trace.log")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "trace.log").stat().st_mode) == 0o600


@pytest.mark.parametrize("planted", ["file", "folder"])
def test_no_link_in_a_world_writable_folder_is_followed(tmp_path: Path, planted: str) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    (tmp_path / "victim").mkdir()
    victim = tmp_path / "victim" / "trace.log"
    victim.write_text("precious\n")
    link = tmp_path / "open" / "link"
    link.symlink_to(victim if planted == "file" else victim.parent)
    done = emit(link if planted == "file" else link / "trace.log")
    assert victim.read_text() == "precious\n"
    assert done.stderr.count("\n") == 1
    assert "symbolic link in a world-writable folder" in done.stderr


def test_a_link_of_ones_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "trace.log")
    emit(tmp_path / "link")
    assert len(events(tmp_path / "trace.log")) == 1


@pytest.mark.parametrize("target", ["{folder}", "{folder}/absent/trace.log", "/dev/full"])
def test_a_trace_that_cannot_be_written_is_one_clear_line_and_no_crash(tmp_path: Path, target: str) -> None:
    done = emit(target.format(folder=tmp_path), lines=5)
    assert done.stderr.count("\n") == 1, done.stderr
    assert "can't write the trace log" in done.stderr
    assert "VERL_XPU_SHIM_TRACE" in done.stderr


def test_one_means_stderr() -> None:
    done = emit("1")
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()][-2:] == ["applied", "exit"]


@pytest.mark.parametrize("off", ["", "0"])
def test_off_means_nothing(tmp_path: Path, off: str) -> None:
    done = emit(off)
    assert (done.stdout, done.stderr) == ("", "")
