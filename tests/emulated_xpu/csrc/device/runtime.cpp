// What torch's core asks of a device runtime: the device guard (devices, streams, events) and the XPU hooks.
#include "device/runtime.h"

#include "device/devices.h"
#include "device/generator.h"
#include "device/late_copy.h"
#include "device/memory.h"

#include <ATen/detail/XPUHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace xpu_emu {
namespace {

struct Event {
  std::chrono::steady_clock::time_point time;
  late::Mark mark;
};

// Kernels run at once, on the calling thread: streams and events order nothing but late copies.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kXPU; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kXPU, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kXPU, current_device()}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      set_device(device.index());
    }
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::DeviceIndex deviceCount() const noexcept override {
    try {
      return device_count();
    } catch (const std::exception& error) {
      TORCH_WARN("XPU initialization: ", error.what());
      return 0;
    }
  }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override { return {}; }

  c10::Stream getStream(c10::Device device) const override {
    device = resolve(device);
    return stream(device, current_stream(device.index()));
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, resolve(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override { return stream(resolve(device), new_stream()); }
  c10::Stream exchangeStream(c10::Stream next) const override {
    auto before = getStream(next.device());
    set_current_stream(next.device_index(), next.id());
    return before;
  }
  bool queryStream(const c10::Stream& stream) const override { return late::query(late::mark(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override { late::finish(late::mark(stream)); }
  void synchronizeDevice(const c10::DeviceIndex device) const override { late::finish_device(device); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (*event == nullptr) {
      *event = new Event();
    }
    *static_cast<Event*>(*event) = {std::chrono::steady_clock::now(), late::mark(stream)};
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event != nullptr) {
      late::wait_in_stream(stream, static_cast<Event*>(event)->mark);
    }
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || late::query(static_cast<Event*>(event)->mark);
  }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) {
      late::finish(static_cast<Event*>(event)->mark);
    }
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start && end, "Both events must be recorded before calculating elapsed time.");
    const auto span = static_cast<Event*>(end)->time - static_cast<Event*>(start)->time;
    return std::chrono::duration<double, std::milli>(span).count();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }

 private:
  static c10::Stream stream(c10::Device device, int64_t id) {
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
};
C10_REGISTER_GUARD_IMPL(XPU, Guard)

// Registered under the name that torch looks for.
struct XPUHooks : at::XPUHooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  void init() const override {}
  bool hasXPU() const override { return true; }
  std::string showConfig() const override { return "XPU backend (emulated)"; }
  int32_t getGlobalIdxFromDevice(const c10::Device& device) const override { return device.index(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override { return default_generator(device); }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }
  c10::DeviceIndex getNumGPUs() const override { return device_count(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  c10::DeviceIndex current_device() const override { return xpu_emu::current_device(); }
  c10::DeviceIndex getCurrentDevice() const override { return xpu_emu::current_device(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::Device getDeviceFromPtr(void*) const override { return {kXPU, xpu_emu::current_device()}; }
  void deviceSynchronize(c10::DeviceIndex device) const override { late::finish_device(device); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  bool isPinnedPtr(const void* pointer) const override { return is_pinned(pointer); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
using at::RegistererXPUHooksRegistry;
using at::XPUHooksRegistry;
C10_REGISTER_CLASS(XPUHooksRegistry, XPUHooks, XPUHooks)

} // namespace

void install_runtime() {
  c10::SetAllocator(kXPU, device_allocator(), /*priority=*/255);
  at::setHostAllocator(kXPU, pinned_allocator(), /*priority=*/255);
  auto& hooks = const_cast<at::XPUHooksInterface&>(at::detail::getXPUHooks());
  if (!hooks.hasXPU()) {
    // torch asked for its hooks, and keeps the empty ones, before this library was loaded: turn that object into ours.
    static_assert(sizeof(XPUHooks) == sizeof(at::XPUHooksInterface));
    new (&hooks) XPUHooks();
  }
}

} // namespace xpu_emu
