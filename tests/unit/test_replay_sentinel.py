"""The part of the replay sentinel that needs no device: what it expects, and when it judges."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from verl_xpu_shim.probes import replay_sentinel as sentinel


def test_the_derivation_needs_numpy_alone_and_gives_the_published_digests() -> None:
    code = (
        "import sys; from verl_xpu_shim.cli import main; status = main(['probe', 'replay-sentinel', '--derive']);"
        "sys.stderr.write(str(status) + ' '.join(m for m in sys.modules if m in ('torch', 'vllm')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "0"
    digests = json.loads(done.stdout)
    assert digests["base"] == "2de516cb758dbf3475b4d48a474647b27c728421dba7cecb78f0b57786d75bad"
    assert digests["mutated"] == "e03d704a409642d0178963db202af4381958ecbbcf4f485e8b1325d154b9de04"
    assert digests["zeros"] == "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7"
    assert len(set(digests.values())) == 7  # the partials of both ranks differ, from the whole and from each other


def test_a_derivation_that_disagrees_voids_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sentinel, "HIDDEN", 128)
    assert sentinel.main(["--derive"]) == 2
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sentinel.main([]) == 2
    assert "the derived digests are not the expected ones" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "value"), [("REPLAY_SENTINEL_AR", "ring"), ("REPLAY_SENTINEL_CYCLES", "many")])
def test_a_setting_that_it_does_not_know_voids_the_run(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    assert sentinel.main([]) == 2
    assert repr(value) in capsys.readouterr().err


@pytest.mark.parametrize(("arms", "status"), [("PP", 0), ("PF", 1), ("PV", 2), ("VF", 1), ("", 2)])
def test_only_a_run_whose_every_arm_passed_is_a_success(arms: str, status: int) -> None:
    report = sentinel.Report(rank=0)
    for arm in arms:
        if arm == "V":
            report.void("P", "no set-up")
        else:
            report.compare("M", "a", "a" if arm == "P" else "b")
    assert report.status() == status


def test_a_line_names_the_arm_its_verdict_and_both_digests(capsys: pytest.CaptureFixture[str]) -> None:
    report = sentinel.Report(rank=1)
    report.compare("M", sentinel.EXPECTED["base"], sentinel.EXPECTED["mutated"])
    line = capsys.readouterr().out
    assert line.split()[1:] == ["rank", "1", "FAIL", "M", "2de516cb758dbf34", "wanted", "e03d704a409642d0"]


def test_the_report_of_a_void_run_is_written_too(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("REPLAY_SENTINEL_OUT", str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert sentinel.main([]) == 2
    with open(f"{tmp_path}/rank1.json", encoding="utf-8") as file:
        report = json.load(file)
    assert report["status"] == 2
    assert "start 2 ranks" in report["void"]
