// The Python side: `install`, what torch._C has in an XPU build, and the process group.
#include "device/devices.h"
#include "device/generator.h"
#include "device/kernels.h"
#include "device/late_copy.h"
#include "device/memory.h"
#include "device/runtime.h"
#include "distributed/xccl.h"

#include <pybind11/chrono.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/device_lazy_init.h>
#include <torch/csrc/utils/pybind.h>

namespace py = pybind11;

namespace xpu_emu {
namespace {

using Index = c10::DeviceIndex;
using c10::CachingAllocator::Stat;

std::vector<int> list_devices() {
  return py::module_::import("xpu_emu.visible_devices").attr("visible")().cast<std::vector<int>>();
}

py::dict memory_stats(Index device) {
  const auto stats = device_allocator()->getDeviceStats(device);
  const auto one = [](const Stat& stat) {
    using namespace py::literals;
    return py::dict(
        "current"_a = stat.current, "peak"_a = stat.peak, "allocated"_a = stat.allocated, "freed"_a = stat.freed);
  };
  py::dict result;
  const auto add = [&](const char* name, const auto& counters) {
    py::dict pools;
    pools["all"] = one(counters[0]);
    pools["small_pool"] = one(Stat());
    pools["large_pool"] = one(counters[0]);
    result[name] = pools;
  };
  add("allocated_bytes", stats.allocated_bytes);
  add("reserved_bytes", stats.reserved_bytes);
  add("active_bytes", stats.active_bytes);
  add("requested_bytes", stats.requested_bytes);
  add("inactive_split_bytes", stats.inactive_split_bytes);
  add("allocation", stats.allocation);
  add("active", stats.active);
  add("segment", stats.allocation);
  add("inactive_split", stats.inactive_split);
  result["num_alloc_retries"] = 0;
  result["num_ooms"] = stats.num_ooms;
  return result;
}

// The functions that torch._C has in an XPU build, by their names there (torch/csrc/xpu/Module.cpp).
void bind_torch_c(py::module_ m) {
  m.def("_xpu_init", [] {
    TORCH_CHECK(!torch::utils::is_device_in_bad_fork(kXPU), "Cannot initialize XPU in a forked subprocess");
    torch::utils::register_fork_handler_for_device_init(kXPU);
    TORCH_CHECK(device_count() > 0, "No XPU devices are available.");
  });
  m.def("_xpu_isInBadFork", [] { return torch::utils::is_device_in_bad_fork(kXPU); });
  m.def("_xpu_getDeviceCount", [] {
    torch::utils::register_fork_handler_for_device_init(kXPU);
    return device_count();
  });
  m.def("_xpu_getDevice", &current_device);
  m.def("_xpu_setDevice", &set_device);
  const auto exchange = [](Index device) {
    if (device < 0) {
      return Index(-1);
    }
    torch::utils::device_lazy_init(kXPU);
    return exchange_device(device);
  };
  m.def("_xpu_exchangeDevice", exchange);
  m.def("_xpu_maybeExchangeDevice", exchange);
  m.def("_xpu_synchronize", &late::finish_device, py::call_guard<py::gil_scoped_release>());
  m.def("_xpu_canDeviceAccessPeer", [](Index, Index) { return true; });
  m.def("_xpu_getArchFlags", [] { return "pvc"; });

  m.def("_xpu_emptyCache", [] {});
  m.def("_xpu_memoryStats", &memory_stats);
  m.def("_xpu_getMemoryInfo", [](Index device) { return device_allocator()->getMemoryInfo(device); });
  m.def("_xpu_resetPeakMemoryStats", [](Index device) { device_allocator()->resetPeakStats(device); });
  m.def("_xpu_resetAccumulatedMemoryStats", [](Index device) { device_allocator()->resetAccumulatedStats(device); });
  m.def("_xpu_getMemoryFraction", &memory_fraction);
  m.def("_xpu_setMemoryFraction", &set_memory_fraction);
  m.def("_xpu_memorySnapshot", [](const py::args&) {
    py::dict result;
    result["segments"] = py::list();
    result["device_traces"] = py::list();
    return result;
  });
  m.def("_xpu_recordMemoryHistory", [](const py::args&, const py::kwargs&) {});

  m.def("_xpu_getCurrentStream", [](Index device) {
    return std::make_tuple(current_stream(device), device, static_cast<int64_t>(kXPU));
  });
  m.def("_xpu_getCurrentRawStream", &current_stream);
  m.def(
      "_xpu_setStream",
      [](int64_t stream, Index device, int64_t) {
        set_device(device);
        set_current_stream(device, stream);
      },
      py::arg("stream_id"), py::arg("device_index"), py::arg("device_type"));
  m.def("_xpu_isCurrentStreamCapturing", [] { return false; });
}

void bind_xccl(py::module_ m) {
  py::module_::import("torch._C._distributed_c10d"); // has the base classes
  py::class_<XcclOptions, c10::intrusive_ptr<XcclOptions>, c10d::Backend::Options>(m, "XcclOptions")
      .def(py::init<bool>(), py::arg("is_high_priority_stream") = false)
      .def_readwrite("is_high_priority_stream", &XcclOptions::is_high_priority_stream);
  py::class_<XcclBackend, c10::intrusive_ptr<XcclBackend>, c10d::Backend>(m, "XcclBackend")
      .def(py::init<
           c10::intrusive_ptr<c10d::Store>, c10::intrusive_ptr<c10d::Backend>, int, int,
           c10::intrusive_ptr<XcclOptions>>());
}

} // namespace
} // namespace xpu_emu

PYBIND11_MODULE(_xpu_emu, m) {
  using namespace xpu_emu;
  m.def("install", [] {
    set_device_lister(&list_devices);
    install_runtime();
    return install_kernels();
  });
  m.def("physical_devices", [] { return visible_devices(); });
  m.def("capacity", &memory_capacity);
  m.def("default_generator", &default_generator);
  bind_torch_c(m.def_submodule("torch_c"));
  bind_xccl(m);
}
