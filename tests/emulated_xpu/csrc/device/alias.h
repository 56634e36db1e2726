// Tensors of one device over the memory of the other: how CPU kernels compute on xpu tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>
#include <vector>

namespace xpu_emu {

inline bool is_xpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::XPU;
}

// A CPU tensor over an xpu tensor's memory. Waits for what is on its way there.
at::Tensor cpu_alias(const at::Tensor& xpu);

// The aliases of one operation's arguments, and the way back. An argument that the kernel resized, or gave another
// storage, is resized likewise; a result that is an argument, or a view of one, comes back as that.
class Aliases {
 public:
  at::Tensor down(const at::Tensor& argument); // the CPU alias of an xpu tensor; others as they are
  void settle();                               // after the kernel: carries resizes over
  at::Tensor up(const at::Tensor& result);     // the xpu tensor for what the kernel returned

  c10::DeviceIndex device = -1; // of the first xpu argument

 private:
  struct Lowered {
    at::Tensor xpu, cpu;
    c10::StorageImpl* storage; // of the alias, before the kernel ran
    const void* data;
    size_t bytes;
  };
  c10::Storage xpu_storage(const c10::Storage& cpu);

  std::vector<Lowered> lowered_;
  std::unordered_map<c10::StorageImpl*, c10::Storage> cpu_storages_; // by xpu storage
  std::unordered_map<c10::StorageImpl*, c10::Storage> xpu_storages_; // by CPU storage
  std::unordered_map<c10::TensorImpl*, at::Tensor> aliases_;         // by xpu tensor
  std::unordered_map<c10::TensorImpl*, at::Tensor> originals_;       // by CPU tensor
  std::vector<at::Tensor> kept_; // results, so that the addresses above stay theirs
};

} // namespace xpu_emu
