// Random numbers on the device: a (seed, offset) state of 16 bytes, as the real generator has. Each operation that draws
// takes one number from it to seed a CPU generator.
#pragma once

#include <ATen/core/Generator.h>

namespace xpu_emu {

const at::Generator& default_generator(c10::DeviceIndex device); // a negative index: the current device
at::Generator new_generator(c10::DeviceIndex device);
// The seed for the next operation that draws from `generator`; advances its offset.
uint64_t draw_seed(const at::Generator& generator);

} // namespace xpu_emu
