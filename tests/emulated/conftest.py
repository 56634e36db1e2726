"""Real ranks on emulated devices: torchrun, gloo behind `xccl`, the shim as it is installed."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Protocol

import pytest

import torchrun
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
        return [line for rank in torchrun.run(count, str(script), env=env) for line in rank]

    return run
