"""What Ray's device ids mean where a GPU is integrated: real pyzes before the stub driver, two emulated devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import stub

IDS = """
import json, sys
from verl_xpu_shim.platform import ray_binding
ids = sys.argv[1]
print(json.dumps([[ray_binding._ordinal(each) for each in ids.split(",")], ray_binding.mask_of_ids(ids)]))
"""

FIRST = "0000:00:02.0/igpu,0000:3d:00.0,0000:4e:00.0"
LAST = "0000:3d:00.0,0000:4e:00.0,0000:00:02.0/igpu"


@pytest.mark.parametrize(
    ("devices", "dpctl", "ids", "ordinals", "mask"),
    [
        # dpctl counts the integrated GPU, torch doesn't: what Ray calls 1 is torch's xpu:0
        (FIRST, "1", "1,2", [0, 1], "1,2"),
        (LAST, "1", "0,1", [0, 1], "0,1"),
        # told a number, Ray counts from 0, as torch does
        (FIRST, "0", "0,1", [0, 1], "1,2"),
        (FIRST, "0", "1", [1], "2"),
        (LAST, "0", "0,1", [0, 1], "0,1"),
    ],
)
def test_ids_are_devices_whatever_is_integrated(
    level_zero: Path, devices: str, dpctl: str, ids: str, ordinals: list[int], mask: str
) -> None:
    env = stub.environment(level_zero, "direct", devices, XPU_EMU="1", XPU_EMU_DEVICE_COUNT="2", XPU_EMU_DPCTL=dpctl)
    assert stub.run(IDS, env, ids) == [ordinals, mask]


REFUSED = """
import json, sys
from verl_xpu_shim.platform import ray_binding
try:
    ray_binding.mask_of_ids(sys.argv[1])
except ray_binding.BindingError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("ids", ["0", "7", "gpu"])
def test_an_id_that_torch_does_not_see_is_an_error(level_zero: Path, ids: str) -> None:
    env = stub.environment(level_zero, "direct", FIRST, XPU_EMU="1", XPU_EMU_DEVICE_COUNT="2")
    said = stub.run(REFUSED, env, ids)
    assert said.startswith(f"Ray gave this worker GPU {ids!r}, which torch doesn't see: torch.xpu.device_count() is 2")
    assert "'verl-xpu-shim doctor'" in said
