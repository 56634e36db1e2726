#pragma once

namespace xpu_emu {

// Registers a kernel for every operator that has one on the CPU. Returns how many.
int install_kernels();

} // namespace xpu_emu
