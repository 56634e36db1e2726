"""Host copies that are complete, and checkpoints that hold CPU tensors: real verl, real FSDP, an emulated device.

With `XPU_EMU_LATE_COPY=1` a `non_blocking` copy to the host completes when the host synchronises; until then it is NaN.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import torchrun

from .child import run

SCRIPT = Path(__file__).with_name("checkpoint_ranks.py")
OFF = {"VERL_XPU_SHIM_DISABLE": "host_copy"}


def ranks(
    action: str, folder: Path, strategy: str, first: int = 0, devices: int = 2, **environment: str
) -> list[list[object]]:
    """What each of two ranks printed; they drive the devices `first` and `first + 1`."""
    emulation = {"XPU_EMU": "1", "XPU_EMU_DEVICE_COUNT": str(devices), "OMP_NUM_THREADS": "1"}
    command = (str(SCRIPT), action, str(folder), strategy, str(first))
    return [
        json.loads(lines[-1]) for lines in torchrun.run(2, *command, env={**os.environ, **emulation, **environment})
    ]


DEVICES = """
import json, pathlib, sys, torch
def walk(value):
    if isinstance(value, torch.Tensor):
        yield str(value.device)  # of a DTensor, what it says of itself; a state that says "xpu" isn't moved there
        yield str(getattr(value, "_local_tensor", value).device)
    elif hasattr(value, "local_shards"):
        for shard in value.local_shards():
            yield str(shard.tensor.device)
    elif isinstance(value, dict):
        for each in value.values():
            yield from walk(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from walk(each)
found = {}
for file in sorted(pathlib.Path(sys.argv[1]).glob("*.pt")):
    try:
        found[file.name] = sorted(set(walk(torch.load(file, weights_only=False))))
    except (RuntimeError, AssertionError) as error:
        found[file.name] = str(error).splitlines()[0]
print(json.dumps(found))
"""


def devices_without_xpu(folder: Path) -> dict[str, object]:
    """The devices of all tensors in each file, loaded where there is no XPU."""
    said = subprocess.check_output([sys.executable, "-c", DEVICES, folder], text=True)
    found: dict[str, object] = json.loads(said.splitlines()[-1])
    return found


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2"])
def test_a_checkpoint_loads_with_fewer_devices_and_without_any(tmp_path: Path, strategy: str) -> None:
    saved = ranks("save", tmp_path, strategy, first=2, devices=4)
    assert [places for _, _, places in saved] == [["xpu:2"], ["xpu:3"]]

    found = devices_without_xpu(tmp_path)
    other = {name: found.pop(name) for name in list(found) if name.startswith("other_")}
    assert {name.partition("_world")[0] for name in found} == {"model", "optim", "extra_state"}
    assert len(found) == 6
    assert all(devices in (["cpu"], []) for devices in found.values()), found
    assert ["cpu"] not in other.values()  # what isn't verl's checkpoint is none of ours

    for first, devices in ((0, 2), (2, 4)):  # others, and those that it was saved from
        loaded = ranks("load", tmp_path, strategy, first=first, devices=devices)
        assert [places for _, _, places in loaded] == [[f"xpu:{first}"], [f"xpu:{first + 1}"]]
        assert [total for _, total, _ in loaded] == pytest.approx([total for _, total, _ in saved])


def test_without_the_capability_it_does_not(tmp_path: Path) -> None:
    ranks("save", tmp_path, "fsdp", first=2, devices=4, **OFF)
    assert any(devices != ["cpu"] for name, devices in devices_without_xpu(tmp_path).items() if "optim" in name)


LATE = {"XPU_EMU_LATE_COPY": "1"}

PREAMBLE = """
import json, os
import torch, torch.distributed as dist
import verl
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard
from verl.utils.fsdp_utils import *
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("cpu:gloo,xpu:xccl", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("xpu", (1,))
def filled(value, size=256):
    layer = torch.nn.Linear(size, size, bias=False, device="xpu")
    torch.nn.init.constant_(layer.weight, value)
    return layer
def read(tensor):
    tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    assert tensor.device.type == "cpu", tensor.device
    return tensor.detach().numpy().copy().ravel()
"""

READS = {
    "fsdp1 parameters": """
        model = FullyShardedDataParallel(filled(3.0), device_id=0, device_mesh=mesh, use_orig_params=False)
        torch.xpu.synchronize()
        offload_fsdp_model_to_cpu(model)
        seen = [read(each) for each in model.parameters()]
    """,
    "fsdp2 parameters": """
        model = filled(3.0)
        fully_shard(model, mesh=mesh)
        torch.xpu.synchronize()
        offload_fsdp_model_to_cpu(model)
        seen = [read(each) for each in model.parameters()]
    """,
    "optimizer": """
        weight = filled(3.0).weight
        optimizer = torch.optim.AdamW([weight])
        weight.grad = torch.ones_like(weight)
        optimizer.step()
        for state in optimizer.state.values():
            state["exp_avg"].fill_(3.0)
        torch.xpu.synchronize()
        offload_fsdp_optimizer(optimizer)
        seen = [read(state["exp_avg"]) for state in optimizer.state.values()]
    """,
    "full state dict, parameters offloaded": """
        model = filled(1.0)
        state = {"weight": torch.full((256, 256), 3.0)}
        policy = CPUOffloadPolicy(pin_memory=False)
        fully_shard(model, mesh=mesh, offload_policy=policy)
        fsdp2_load_full_state_dict(model, state, mesh, policy)
        seen = [read(each) for each in model.parameters()]
    """,
}
RESULT = """
print(json.dumps(bool(seen) and all(bool((each == 3.0).all()) for each in seen)), flush=True)
os._exit(0)  # what is still on its way must not be waited for
"""


def late(name: str, **environment: str) -> bool:
    return bool(run(PREAMBLE + textwrap.dedent(READS[name]) + RESULT, **LATE, **environment))


@pytest.mark.parametrize("name", READS)
def test_what_the_host_reads_has_arrived(name: str) -> None:
    assert late(name)


@pytest.mark.parametrize("name", READS)
def test_without_the_capability_it_has_not(name: str) -> None:
    assert not late(name, **OFF)


TENSORDICT = """
import json, torch
import verl
from tensordict import TensorDict
results = TensorDict({"loss": torch.full((1 << 16,), 3.0, device="xpu")}, batch_size=[])
torch.xpu.synchronize()
seen = results.to("cpu")["loss"].numpy().copy()
print(json.dumps(bool((seen == 3.0).all())))
"""


@pytest.mark.parametrize("version", ["0.9.1", "0.10.0"])
def test_a_tensordict_has_arrived(tmp_path: Path, version: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        tmp_path,
        f"tensordict=={version}",
    ]
    subprocess.run(command, check=True)
    assert run(TENSORDICT, PYTHONPATH=str(tmp_path), **LATE) is True
    assert run(TENSORDICT, PYTHONPATH=str(tmp_path), **LATE, **OFF) is (version == "0.10.0")
