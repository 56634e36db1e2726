"""``verl-xpu-shim probe replay-sentinel``: do captured graphs go on reading the live host table?

Two ranks look ids up in a ``PinnedHostVocabParallelEmbedding``, eager, compiled and captured, over vLLM's own
all-reduce, while rows are rewritten on the host; every output is compared with digests derived here from numpy alone.
A positive and a failing control show that the probe itself can fail. Run it on two devices of one machine:

    torchrun --nproc-per-node 2 -m verl_xpu_shim probe replay-sentinel [--derive]

``REPLAY_SENTINEL_AR`` = ``custom`` (default) or ``nccl``; ``REPLAY_SENTINEL_CYCLES`` = 3; ``REPLAY_SENTINEL_OUT`` = a
folder for ``rank{N}.json``. Exit status: 0 every arm passed, 1 one failed, 2 the run can't judge.

It doesn't show vLLM's piecewise compilation inside a served model, nor exclusive residency: a copy at every launch
would see the rewritten rows too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import Final

import numpy as np

VOCABULARY: Final = 4096
HIDDEN: Final = 256
RANKS: Final = 2
SHARD: Final = VOCABULARY // RANKS
IDS: Final = (0, 1, 1234, 3000, 4095, 1234, 3000, 2048)
#: row -> the bits that fill it: bfloat16's largest and lowest number, one row in each rank's shard.
SENTINELS: Final = {1234: 0x7F7F, 3000: 0xFF7F}
#: An id that no rank has.
NOWHERE: Final = 2**30

#: What the derivation must give; a disagreement voids the run.
EXPECTED: Final = {
    "base": "2de516cb758dbf3475b4d48a474647b27c728421dba7cecb78f0b57786d75bad",
    "mutated": "e03d704a409642d0178963db202af4381958ecbbcf4f485e8b1325d154b9de04",
    "zeros": "ad7facb2586fc6e966c004d7d1d16b024f5805ff7cb47c7a85dabd8b48892ca7",
}


class Void(Exception):
    """The run can't judge; the text says why."""


def table_bits(mutated: bool = False) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """The table ``[4096, 256]``, as the bits of bfloat16: ``(row * 256 + column) mod 251``.

    Integers below 256 are exact in bfloat16, whose bits are the upper half of the float32's.
    """
    values = (np.arange(VOCABULARY * HIDDEN, dtype=np.int64) % 251).astype("<f4")
    bits = (values.view("<u4") >> 16).astype("<u2").reshape(VOCABULARY, HIDDEN)
    for row, fill in SENTINELS.items() if mutated else ():
        bits[row] = fill
    return bits


def derive() -> dict[str, str]:
    """Return the SHA-256 of the little-endian bytes of every output: base, mutated, zeros, and each rank's partials.

    A rank's partial is its own rows and +0.0 elsewhere; the all-reduce adds them exactly (no -0.0 occurs).
    """
    ids = np.array(IDS)
    digests = {"zeros": sha256(np.zeros((len(IDS), HIDDEN), "<u2").tobytes())}
    for state in ("base", "mutated"):
        rows = table_bits(mutated=state == "mutated")[ids]
        digests[state] = sha256(rows.tobytes())
        for rank in range(RANKS):
            own = np.where((ids // SHARD == rank)[:, None], rows, 0).astype("<u2")
            digests[f"{state}/rank{rank}"] = sha256(own.tobytes())
    return digests


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass
class Arm:
    """One comparison; ``verdict`` is PASS, FAIL or VOID."""

    arm: str
    verdict: str
    digest: str
    wanted: str
    note: str = ""


class Report:
    """The arms of one rank, as they happen."""

    def __init__(self, rank: int) -> None:
        self.rank: Final = rank
        self.arms: Final[list[Arm]] = []

    def compare(self, arm: str, digest: str, wanted: str) -> None:
        self._add(Arm(arm, "PASS" if digest == wanted else "FAIL", digest, wanted))

    def void(self, arm: str, note: str) -> None:
        self._add(Arm(arm, "VOID", "", "", note))

    def _add(self, arm: Arm) -> None:
        self.arms.append(arm)
        told = arm.note or f"{arm.digest[:16]} wanted {arm.wanted[:16]}"
        line = f"{time.strftime('%H:%M:%S')} rank {self.rank} {arm.verdict:4} {arm.arm:14} {told}\n"
        sys.stdout.write(line)  # at once, whole: both ranks write to the same terminal
        sys.stdout.flush()

    def status(self) -> int:
        verdicts = {arm.verdict for arm in self.arms}
        return 1 if "FAIL" in verdicts else 0 if verdicts == {"PASS"} else 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probe on this rank and return its exit status."""
    parser = argparse.ArgumentParser(prog="verl-xpu-shim probe replay-sentinel", description=__doc__.partition("\n")[0])
    parser.add_argument("--derive", action="store_true", help="print the digests as JSON; needs numpy alone")
    parser.add_argument("--json", action="store_true", help="print the report of this rank as JSON, too")
    options = parser.parse_args(arguments)
    digests = derive()
    if options.derive:
        print(json.dumps(digests, indent=2))
        return _judge_derivation(digests)
    rank = int(os.environ.get("RANK", "0"))
    report = Report(rank)
    facts: dict[str, Any] = {"rank": rank}
    try:
        if _judge_derivation(digests) != 0:
            raise Void("the derived digests are not the expected ones")
        _run(report, digests, facts)
        status = report.status()
    except Void as void:
        facts["void"] = str(void)
        print(f"rank {rank} VOID: {void}", file=sys.stderr, flush=True)
        status = 2
    text = json.dumps({**facts, "status": status, "arms": [asdict(arm) for arm in report.arms]}, indent=2)
    if options.json:
        print(text)
    if folder := os.environ.get("REPLAY_SENTINEL_OUT"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        Path(folder, f"rank{rank}.json").write_text(text + "\n", "utf-8")
    return status


def _judge_derivation(digests: dict[str, str]) -> int:
    partials = [digest for name, digest in digests.items() if "/" in name]
    right = all(digests[name] == wanted for name, wanted in EXPECTED.items()) and len(set(partials)) == len(partials)
    return 0 if right else 2


def _choices() -> tuple[str, int]:
    path, cycles = os.environ.get("REPLAY_SENTINEL_AR", "custom"), os.environ.get("REPLAY_SENTINEL_CYCLES", "3")
    if path not in ("custom", "nccl"):
        raise Void(f"REPLAY_SENTINEL_AR must be custom or nccl, not {path!r}")
    if not cycles.isdecimal():
        raise Void(f"REPLAY_SENTINEL_CYCLES must be a number, not {cycles!r}")
    return path, int(cycles)


def _run(report: Report, digests: dict[str, str], facts: dict[str, Any]) -> None:
    path, cycles = _choices()
    if os.environ.get("WORLD_SIZE") != str(RANKS):
        raise Void(f"start {RANKS} ranks: torchrun --nproc-per-node {RANKS} -m verl_xpu_shim probe replay-sentinel")
    # What vLLM reads at import. The flags leave the path to the two that can be asked for.
    os.environ["VLLM_HOST_EMBED_TABLE"] = "1"
    os.environ.setdefault("VLLM_ALLREDUCE_USE_SYMM_MEM", "0")
    os.environ.setdefault("VLLM_ALLREDUCE_USE_FLASHINFER", "0")
    try:
        from verl_xpu_shim.vllm import sentinel
    except ImportError as error:
        raise Void(f"torch and vLLM are needed: {error}") from error
    sentinel.run(report, digests, facts, path, cycles)
