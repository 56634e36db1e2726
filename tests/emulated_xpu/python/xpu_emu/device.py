"""torch.xpu and torch._C._xpu_* over the emulated device."""

import importlib.util
import os
import time


def install():
    import torch
    import torch.distributed  # noqa: F401  (registers c10d's pybind classes)

    from xpu_emu.native import extension as e

    if torch._C._has_xpu:
        raise RuntimeError("this PyTorch build has real XPU support; refusing to emulate")
    e.install()
    C = torch._C
    xpu = torch.xpu

    # ---- torch._C._xpu_* ----------------------------------------------------
    C._has_xpu = True
    state = {"init_pid": None}

    class _XpuDeviceProperties:
        def __init__(self, idx):
            total = e.mem_info(idx)[1]
            self.name = os.environ.get("XPU_EMU_NAME", "Intel(R) Data Center GPU Max 1550 (emulated)")
            self.platform_name = "Intel(R) oneAPI Unified Runtime over Level-Zero"
            self.vendor = "Intel(R) Corporation"
            self.type = "gpu"
            self.device_id = 0x0BD5
            self.driver_version = self.version = "1.6.0"
            self.total_memory = total
            self.local_mem_size = 131072
            self.last_level_cache_size = 408 << 20
            self.memory_clock_rate, self.memory_bus_width = 3200, 64
            self.max_compute_units = self.gpu_eu_count = 512
            self.gpu_subslice_count = 64
            self.max_work_group_size, self.max_num_sub_groups = 1024, 64
            self.sub_group_sizes = [16, 32]
            self.has_fp16 = self.has_fp64 = self.has_atomic64 = True
            self.has_bfloat16_conversions = True
            self.has_subgroup_matrix_multiply_accumulate = True
            self.has_subgroup_matrix_multiply_accumulate_tensor_float32 = True
            self.has_subgroup_2d_block_io = True
            self.is_integrated_gpu = False
            self.architecture = 13136561920
            self.uuid = b"xpu-emu-%08d" % idx

        def __repr__(self):
            return f"_XpuDeviceProperties(name='{self.name}', total_memory={self.total_memory >> 20}MB)"

    props = {}

    def _get_device_properties(i):
        if not 0 <= i < e.device_count():
            raise AssertionError("Invalid device id")
        return props.setdefault(i, _XpuDeviceProperties(i))

    def _xpu_init():
        if e.device_count() == 0:
            raise RuntimeError("No XPU devices are available.")
        state["init_pid"] = os.getpid()
        xpu.default_generators = tuple(e.default_generator(i) for i in range(e.device_count()))
        xpu._get_device_properties = _get_device_properties

    def _bad_fork():  # like the real runtime: initialized in a parent, then forked
        return state["init_pid"] is not None and state["init_pid"] != os.getpid()

    def _stats(i):
        cur, peak, alloc, freed, c_cur, c_peak, c_alloc, c_freed, ooms = e.mem_stat(i)
        nb = dict(current=cur, peak=peak, allocated=alloc, freed=freed)
        nc = dict(current=c_cur, peak=c_peak, allocated=c_alloc, freed=c_freed)
        zero = dict(current=0, peak=0, allocated=0, freed=0)
        three = lambda d: {"all": dict(d), "small_pool": dict(zero), "large_pool": dict(d)}  # noqa: E731
        return {
            "allocated_bytes": three(nb), "reserved_bytes": three(nb), "active_bytes": three(nb),
            "requested_bytes": three(nb), "allocation": three(nc), "active": three(nc),
            "segment": three(nc), "inactive_split": three(zero), "inactive_split_bytes": three(zero),
            "num_alloc_retries": 0, "num_ooms": ooms,
        }

    XPU_TYPE = 12  # c10::DeviceType::XPU
    fraction = {}
    for name, fn in dict(
        _xpu_init=_xpu_init,
        _xpu_isInBadFork=_bad_fork,
        _xpu_getDeviceCount=e.device_count,
        _xpu_getDevice=e.current_device,
        _xpu_setDevice=lambda i: e.set_device(i),
        _xpu_exchangeDevice=e.exchange_device,
        _xpu_maybeExchangeDevice=e.exchange_device,
        _xpu_synchronize=lambda i: None,
        _xpu_emptyCache=lambda: None,
        _xpu_memoryStats=_stats,
        _xpu_resetPeakMemoryStats=e.reset_peak,
        _xpu_resetAccumulatedMemoryStats=e.reset_accumulated,
        _xpu_getMemoryInfo=e.mem_info,
        _xpu_canDeviceAccessPeer=lambda a, b: True,
        _xpu_getMemoryFraction=lambda i: fraction.get(i, 1.0),
        _xpu_setMemoryFraction=lambda f, i: fraction.__setitem__(i, f),
        _xpu_memorySnapshot=lambda *a: {"segments": [], "device_traces": []},
        _xpu_recordMemoryHistory=lambda *a, **k: None,
        _xpu_getArchFlags=lambda: "pvc",
        _xpu_getCurrentStream=lambda i: (e.current_stream(i), i, XPU_TYPE),
        _xpu_getCurrentRawStream=lambda i: e.current_stream(i),
        _xpu_setStream=lambda stream_id, device_index, device_type: e.set_stream(stream_id, device_index),
        _xpu_isCurrentStreamCapturing=lambda: False,
    ).items():
        setattr(C, name, fn)
    C._XpuDeviceProperties = _XpuDeviceProperties

    # ---- torch.xpu ----------------------------------------------------------
    xpu._XpuDeviceProperties = _XpuDeviceProperties
    xpu._exchange_device = C._xpu_exchangeDevice
    xpu._maybe_exchange_device = C._xpu_maybeExchangeDevice
    xpu._is_in_bad_fork = _bad_fork

    class _XpuStreamBase(torch.Stream):
        def __new__(cls, priority=0, stream_id=0, device_index=0, device_type=0, **kw):
            if stream_id or device_type:
                return super().__new__(cls, stream_id=stream_id, device_index=device_index, device_type=device_type)
            return super().__new__(cls, device=torch.device("xpu", e.current_device()), priority=priority)

        @property
        def sycl_queue(self):
            return 0x10000 + self.stream_id

        @property
        def priority(self):
            return 0

        @staticmethod
        def priority_range():
            return (0, -1)

    class _XpuEventBase(torch.Event):
        def __new__(cls, enable_timing=False, **kw):
            return super().__new__(cls, device="xpu", enable_timing=enable_timing)

        def record(self, stream=None):
            self._t = time.perf_counter_ns()
            return super().record(stream)

        def elapsed_time(self, other):  # torch.Event.elapsed_time refuses subclasses
            return (other._t - self._t) / 1e6

        @property
        def sycl_event(self):
            return self.event_id

    C._XpuStreamBase = _XpuStreamBase
    C._XpuEventBase = _XpuEventBase
    import torch.xpu.streams as st

    src = importlib.util.find_spec("torch.xpu.streams")
    src.loader.exec_module(st)  # re-run upstream's own Stream/Event classes on the real bases
    xpu.Stream, xpu.Event = st.Stream, st.Event
