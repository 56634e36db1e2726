"""Real ranks on emulated devices: torchrun, gloo behind `xccl`, the shim as it is installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Protocol

import pytest

from emulated_xpu.harness import environment as emulated_environment


class Ranks(Protocol):
    def __call__(self, body: str, count: int = 2, **environment: str) -> list[str]: ...


PREAMBLE = """
import os, sys
import vllm  # an empty package of that name: it arms the watchlist as verl does, and costs no ten seconds
import torch, torch.distributed as dist
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.xpu.set_device(rank)
dist.init_process_group(os.environ.get("BACKEND", "cpu:gloo,xpu:xccl"))
"""


@pytest.fixture
def ranks(tmp_path: Path) -> Ranks:
    """Run ``body`` in ``count`` ranks; return what they print, fail where one does."""

    def run(body: str, count: int = 2, **environment: str) -> list[str]:
        script = tmp_path / "body.py"
        (tmp_path / "vllm.py").touch()
        script.write_text(PREAMBLE + textwrap.dedent(body) + "\ndist.destroy_process_group()\n")
        env = emulated_environment(count, **environment)
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
        done = subprocess.run(
            [*command, str(script)], env=env, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[:8000]
        return done.stdout.splitlines()

    return run
