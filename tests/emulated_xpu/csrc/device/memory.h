// Device memory is host memory tagged `xpu`, with a capacity and torch's statistics; pinned memory is host memory that
// is remembered as pinned.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

namespace xpu_emu {

c10::DeviceAllocator* device_allocator();
at::HostAllocator* pinned_allocator();
bool is_pinned(const void* pointer);

size_t memory_capacity(); // of each device, in bytes

// The share of a device's memory that this process may use: torch.xpu.set_per_process_memory_fraction.
double memory_fraction(c10::DeviceIndex device);
void set_memory_fraction(double fraction, c10::DeviceIndex device);

// An xpu storage over the memory of a CPU storage, and the other way round. Each keeps the other's memory alive.
c10::Storage xpu_storage_over(const c10::Storage& cpu, c10::DeviceIndex device);
c10::Storage cpu_storage_over(const c10::Storage& xpu);
c10::DataPtr xpu_pointer_over(const c10::Storage& cpu, c10::DeviceIndex device);

} // namespace xpu_emu
