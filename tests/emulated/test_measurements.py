"""What verl reports about an XPU: peak, memory, profile; real verl on an emulated device."""

from __future__ import annotations

import pytest

from verl_xpu_shim.platform.measurements import peak_flops

from .child import run

# name, vector engines of the whole device, bf16 TFLOPS by Intel's published figures (Arc Pro: half its INT8 TOPS)
PUBLISHED = [
    ("Intel(R) Data Center GPU Max 1550", 1024, 839),
    ("Intel(R) Data Center GPU Max 1100", 448, 355),
    ("Intel(R) Arc(TM) Pro B70 Graphics", 256, 367 / 2),
    ("Intel(R) Arc(TM) Pro B65 Graphics", 160, 197 / 2),
    ("Intel(R) Arc(TM) Pro B60 Graphics", 160, 197 / 2),
    ("Intel(R) Arc(TM) Pro B50 Graphics", 128, 170 / 2),
]


@pytest.mark.parametrize(("name", "engines", "tflops"), PUBLISHED)
def test_peaks_are_those_that_intel_publishes(name: str, engines: int, tflops: float) -> None:
    assert peak_flops(name, engines) == pytest.approx(tflops * 1e12, rel=0.005)


MFU = """
import json
from transformers import LlamaConfig
from verl.utils.flops_counter import FlopsCounter, get_device_flops
counter = FlopsCounter(LlamaConfig(num_hidden_layers=2))
achieved, promised = counter.estimate_flops([4096, 4096], 1.0)
print(json.dumps([get_device_flops(), get_device_flops("G"), get_device_flops(device_name="H100"), achieved, promised]))
"""


def test_mfu_is_a_number() -> None:
    tera, giga, h100, achieved, promised = run(MFU, XPU_EMU_NAME="Intel(R) Data Center GPU Max 1550")
    assert tera == pytest.approx(419.4, rel=1e-3)  # the emulated device has the 512 engines of one tile
    assert giga == pytest.approx(tera * 1000)
    assert h100 == pytest.approx(989)
    assert promised == tera
    assert 0 < achieved / promised < 1


UNKNOWN = """
import json, logging
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("verl_xpu_shim").addHandler(handler)
from verl.utils.flops_counter import get_device_flops
print(json.dumps([str(get_device_flops()), str(get_device_flops()), [line for line in lines if "peak" in line]]))
"""


def test_an_unknown_device_is_named_once_and_stays_unknown() -> None:
    first, second, lines = run(UNKNOWN, XPU_EMU_NAME="Intel(R) Future")
    assert first == second == "inf"
    assert lines == ["no peak FLOP/s known for Intel(R) Future: verl will report its MFU as 0"]


MEMORY = """
import json, torch
from verl.utils.profiler.performance import _get_current_mem_info
kept = torch.ones(1 << 20, device="xpu")
print(json.dumps(_get_current_mem_info("MB", 1)))
"""


def test_memory_is_reported_where_the_driver_does_not_tell_what_is_free() -> None:
    whole, without = run(MEMORY), run(MEMORY, XPU_EMU_MEM_GET_INFO="raise")
    assert without[0] == whole[0] == "4.0"
    assert without[3] == whole[3]
    assert without[2] == without[1]


PROFILE = """
import json, sys, tempfile
from verl.utils.profiler.config import TorchProfilerToolConfig
from verl.utils.profiler.torch_profile import get_torch_profiler
profiles = []
for contents in (None, [], ["cuda"], ["xpu", "stack"], ["memory"]):
    TorchProfilerToolConfig(contents=contents or [])
    profiler = get_torch_profiler(contents, tempfile.mkdtemp(), "actor")
    profiles.append([sorted(each.name for each in profiler.activities), profiler.use_device])
try:
    TorchProfilerToolConfig(contents=["npu"])
except AssertionError as error:
    profiles.append(str(error))
print(json.dumps(profiles))
"""


def test_profiles_hold_kernels() -> None:
    device = [["CPU", "XPU"], "xpu"]
    *profiles, refused = run(PROFILE)
    assert profiles == [device, device, device, device, [["CPU"], None]]
    assert "'xpu'" in refused


def test_without_the_capability_none_of_it() -> None:
    tera, *_ = run(MFU, XPU_EMU_NAME="Intel(R) Data Center GPU Max 1550", VERL_XPU_SHIM_DISABLE="dist_profiler")
    assert tera == float("inf")
