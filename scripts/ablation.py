"""Show that each required capability is needed: run GRPO without it, and write what a user would see.

    python scripts/ablation.py [NAME...]     after scripts/grpo.sh; all that have no result yet, or the ones named

Two steps of scripts/grpo/job.sh a run; the results are kept in .cache/grpo, and docs/ablation.md is made from them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import asdict
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from grpo import steps

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "grpo"

#: What changes nothing here is left out in one run.
TOGETHER = "attention_utils,host_copy"

#: What is left out -> the environment that leaves it out.
ABLATIONS = {
    "everything": {"VERL_XPU_SHIM": "0"},
    **{
        name: {"VERL_XPU_SHIM_DISABLE": name}
        for name in (
            "platform",
            "fsdp_engine",
            "attention_default",
            "reduce_avg",
            "fsdp2_reduce_avg",
            "ray_devices",
            TOGETHER,
        )
    },
}

#: Why a capability whose absence changes nothing in this run is required all the same.
WHY = {
    "fsdp2_reduce_avg": "FSDP2 asks for AVG through `torch.distributed`'s functions, where `reduce_avg` is. What it "
    "alone covers is PREMUL_SUM, for a divide factor of one's own (`tests/emulated/test_fsdp2_reduce_avg.py`).",
    TOGETHER: "`attention_utils`: verl 0.9.1 falls back by itself where there is no flash-attn; verl 0.9.0 raises an "
    "ImportError at the first packed batch. `host_copy`: the emulated device copies at once, unless it is told to be "
    "late (`tests/emulated/test_host_copy.py` does), and this run neither offloads nor saves.",
}

HEAD = """\
# What happens without each required capability

Written by `scripts/ablation.py`: two steps of the run of `scripts/grpo.sh` (verl {verl}, vLLM {vllm}, torch {torch};
two emulated XPUs), each with a capability left out by `VERL_XPU_SHIM_DISABLE`, one with `VERL_XPU_SHIM=0`. The error
is the first one of the log, with the line of verl, vLLM or transformers that it came through last.

| left out | steps | seconds | what a user sees |
|---|---|---|---|
"""


@dataclass
class Result:
    """What became of a run; ``error`` is the text of the first exception, ``where`` the line that it came through."""

    status: int
    seconds: int
    steps: int
    faults: list[str]
    error: str
    where: str


def run(name: str) -> Result:
    began = time.monotonic()
    environment = {**os.environ, **ABLATIONS[name]}
    job = f"without-{name.replace(',', '-')}"  # a comma would make it a list to Hydra
    status = subprocess.run(["scripts/grpo/job.sh", job], cwd=ROOT, env=environment, check=False).returncode
    log = (CACHE / job / "log").read_text("utf-8", "replace")
    done = steps.read(log)
    error, where = first_error(log) if status else ("", "")
    return Result(status, round(time.monotonic() - began), len(done), steps.faults(done, 2), error, where)


def first_error(log: str) -> tuple[str, str]:
    """The first exception of ``log``, and the last line of verl's, vLLM's or transformers' on the way to it.

    ``ImportError: no flash-attn`` and ``verl/workers/config/model.py:185``, or nothing.
    """
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)
    plain = re.sub(r"^(?:\s*\([^()\n]*pid=\d+[^()\n]*\) ?)+", "", plain, flags=re.MULTILINE)
    error = re.search(r"^ *(?!ray\.exceptions)((?:\w+\.)*\w*(?:Error|Exception|Refused): \S.*)", plain, re.MULTILINE)
    if error is None:
        return "", ""
    way = plain[: error.start()].splitlines()[-60:]
    frames = re.findall(r'/site-packages/((?:verl|vllm|transformers)/\S+)", line (\d+)', "\n".join(way))
    return error[1].strip(), ":".join(frames[-1]) if frames else ""


def row(name: str, result: Result) -> str:
    if result.status == 124:
        seen = "**It hangs.**"
    elif result.status:
        where = f" ({result.where})" if result.where else ""
        error = result.error if len(result.error) < 240 else result.error[:240] + "…"
        seen = f"`{error.replace('|', '/').replace('`', '')}`{where}"
    elif result.faults:
        seen = f"It ends with exit status 0, but {'; '.join(result.faults)}."
    else:
        seen = "It trains."
    if not result.status and name in WHY:
        seen += f" {WHY[name]}"
    names = ", ".join(f"`{each}`" for each in name.split(","))
    left_out = {"everything": "everything (`VERL_XPU_SHIM=0`)"}.get(name, names)
    return f"| {left_out} | {result.steps} of 2 | {result.seconds} | {seen} |\n"


def main(names: list[str]) -> int:
    for name in names or ABLATIONS:
        kept = CACHE / f"without-{name}.json"
        if names or not kept.exists():
            print(f"ablation: without {name}", flush=True)
            result = run(name)
            kept.write_text(json.dumps(asdict(result)))
            print(f"ablation: {row(name, result)}", end="", flush=True)
    return write()


def write() -> int:
    """Make the table of the results that there are; 1 where some are missing."""
    kept = {name: CACHE / f"without-{name}.json" for name in ABLATIONS}
    results = {name: Result(**json.loads(path.read_text())) for name, path in kept.items() if path.exists()}
    versions = {name: version(name) for name in ("verl", "vllm", "torch")}
    text = HEAD.format(**versions) + "".join(row(name, result) for name, result in results.items())
    (ROOT / "docs").mkdir(exist_ok=True)
    (ROOT / "docs" / "ablation.md").write_text(text)
    return bool(set(ABLATIONS) - set(results))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
