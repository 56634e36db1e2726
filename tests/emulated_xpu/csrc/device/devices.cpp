#include "device/devices.h"

#include <c10/util/Exception.h>
#include <pybind11/pybind11.h>

#include <atomic>

namespace xpu_emu {
namespace {

DeviceLister lister = nullptr;
std::atomic<const std::vector<int>*> devices{nullptr};

thread_local c10::DeviceIndex current = 0;
thread_local int64_t streams[kMaxDevices] = {0};
std::atomic<int64_t> next_stream{1};

} // namespace

void set_device_lister(DeviceLister function) {
  lister = function;
}

const std::vector<int>& visible_devices() {
  if (const auto* known = devices.load(std::memory_order_acquire)) {
    return *known;
  }
  // The GIL is the lock: a mutex of ours, held while waiting for the GIL, could deadlock with a thread that has it.
  pybind11::gil_scoped_acquire gil;
  if (devices.load(std::memory_order_acquire) == nullptr) {
    TORCH_CHECK(lister != nullptr, "xpu_emu isn't installed");
    auto found = lister();
    TORCH_CHECK(found.size() <= kMaxDevices, "XPU_EMU_DEVICE_COUNT: at most ", kMaxDevices, " devices");
    if (devices.load(std::memory_order_acquire) == nullptr) { // Python may have let another thread in
      devices.store(new std::vector<int>(std::move(found)), std::memory_order_release);
    }
  }
  return *devices.load(std::memory_order_acquire);
}

c10::DeviceIndex device_count() {
  return static_cast<c10::DeviceIndex>(visible_devices().size());
}

c10::DeviceIndex current_device() {
  return current;
}

void set_device(c10::DeviceIndex index) {
  TORCH_CHECK(
      index >= 0 && index < device_count(),
      "The device index is out of range. It must be in [0, ", static_cast<int>(device_count()), "), but got ",
      static_cast<int>(index), ".");
  current = index;
}

c10::DeviceIndex exchange_device(c10::DeviceIndex index) {
  const auto before = current;
  if (index >= 0) {
    current = index;
  }
  return before;
}

c10::Device resolve(c10::Device device) {
  return device.has_index() ? device : c10::Device(kXPU, current);
}

int64_t current_stream(c10::DeviceIndex device) {
  return streams[device];
}

void set_current_stream(c10::DeviceIndex device, int64_t stream) {
  streams[device] = stream;
}

int64_t new_stream() {
  return next_stream++;
}

} // namespace xpu_emu
