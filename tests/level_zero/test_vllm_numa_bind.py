"""vLLM's `--numa-bind` on XPU: its own code asks for the nodes, real pyzes finds them before the stub driver.

Only the platform is a stand-in: vLLM's for XPU can't be imported without vllm_xpu_kernels.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import stub
from .test_numa import sysfs

CODE = """
import json, os, pathlib, sys, types
import torch
torch.version.xpu = os.environ["BUILD"] or None
import vllm.platforms
from vllm.platforms.interface import Platform, PlatformEnum
class XPU(Platform):
    _enum = PlatformEnum.XPU if os.environ["BUILD"] else PlatformEnum.CPU
    device_type = "xpu"
vllm.platforms._current_platform = XPU()
from vllm.utils import numa_utils
from verl_xpu_shim.topology import numa
numa.SYSFS = pathlib.Path(sys.argv[1])
config = types.SimpleNamespace(numa_bind_nodes=None)
try:
    found = [numa_utils._get_numa_node(config, index) for index in range(2)]
except RuntimeError as error:
    found = str(error)
print(json.dumps(found))
"""

DEVICES = "0000:3d:00.0,0000:00:02.0/igpu,0001:bd:00.0"
NODES = {"0000:3d:00.0": (1, "0"), "0001:bd:00.0": (0, "1")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stub")
    stub.build(made)
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", made / "site", "pyzes>=0.1.2"]
    subprocess.run(command, check=True)
    return made


@pytest.mark.parametrize(
    ("build", "nodes", "more", "expected"),
    [
        ("20250301", NODES, {}, [1, 0]),
        ("20250301", NODES, {"ZE_AFFINITY_MASK": "2,0"}, [1, 0]),
        ("20250301", {**NODES, "0001:bd:00.0": (-1, "0-1")}, {}, "Pass --numa-bind-nodes"),
        ("20250301", NODES, {"VERL_XPU_SHIM_DISABLE": "numa_affinity"}, "Pass --numa-bind-nodes"),
        ("", NODES, {}, "Pass --numa-bind-nodes"),
    ],
)
def test_nodes_are_found_by_the_devices_addresses(
    folder: Path,
    tmp_path: Path,
    build: str,
    nodes: dict[str, tuple[int, str]],
    more: dict[str, str],
    expected: list[int] | str,
) -> None:
    env = stub.environment(folder, "direct", DEVICES, PYTHONPATH=str(folder / "site"), BUILD=build, **more)
    found = stub.run(CODE, env, str(sysfs(tmp_path, nodes)))
    if isinstance(expected, str):
        assert expected in found.replace("\n", " ")
    else:
        assert found == expected
