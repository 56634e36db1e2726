#pragma once

#include <torch/library.h>

namespace xpu_emu {

// Runs any operator on the CPU over the memory of its xpu tensors. Unlike at::native::cpu_fallback it doesn't copy, so
// that views and in-place operations are right.
void cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

} // namespace xpu_emu
