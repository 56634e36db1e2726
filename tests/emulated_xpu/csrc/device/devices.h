// The emulated machine's devices as this process sees them, and each thread's current device and streams.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

namespace xpu_emu {

constexpr c10::DeviceType kXPU = c10::DeviceType::XPU;
constexpr int kMaxDevices = 64;

// What the knob `name` says, or `otherwise`.
inline std::string knob(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

// Physical index of every visible device, in the order of torch's ordinals. Fixed at first use, as a driver fixes it:
// a mask that changes later has no effect. Throws what the driver would on a mask that it can't read.
const std::vector<int>& visible_devices();

// Who answers the first call above: a Python function, because the stand-in for dpctl needs the same answer without
// torch. Called with the GIL held.
using DeviceLister = std::vector<int> (*)();
void set_device_lister(DeviceLister lister);

c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
void set_device(c10::DeviceIndex index);
// Returns the device before; a negative index changes nothing.
c10::DeviceIndex exchange_device(c10::DeviceIndex index);
c10::Device resolve(c10::Device device);  // an index where there was none

int64_t current_stream(c10::DeviceIndex device);
void set_current_stream(c10::DeviceIndex device, int64_t stream);
int64_t new_stream();

struct DeviceScope {
  c10::DeviceIndex before;
  explicit DeviceScope(c10::DeviceIndex index) : before(exchange_device(index)) {}
  ~DeviceScope() { exchange_device(before); }
  DeviceScope(const DeviceScope&) = delete;
};

} // namespace xpu_emu
