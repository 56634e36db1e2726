#include "device/alias.h"

#include "device/late_copy.h"
#include "device/memory.h"

#include <ATen/core/TensorBase.h>
#include <c10/core/CPUAllocator.h>

namespace xpu_emu {
namespace {

at::Tensor over(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  auto* impl = tensor.unsafeGetTensorImpl();
  impl->set_storage_offset(like.storage_offset());
  impl->set_sizes_and_strides(like.sizes(), like.strides());
  impl->_set_conj(like.is_conj());
  impl->_set_neg(like.is_neg());
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) {
    impl->set_wrapped_number(true);
  }
  return tensor;
}

} // namespace

at::Tensor cpu_alias(const at::Tensor& xpu) {
  late::settle_uploads();
  return over(cpu_storage_over(xpu.storage()), xpu, c10::DispatchKey::CPU);
}

at::Tensor Aliases::down(const at::Tensor& argument) {
  if (!argument.defined()) {
    return argument;
  }
  if (!is_xpu(argument)) {
    originals_.emplace(argument.unsafeGetTensorImpl(), argument);
    return argument;
  }
  if (device < 0) {
    device = argument.device().index();
  }
  auto [entry, is_new] = aliases_.try_emplace(argument.unsafeGetTensorImpl());
  if (!is_new) {
    return entry->second;
  }
  auto [storage, first_use] = cpu_storages_.try_emplace(argument.storage().unsafeGetStorageImpl());
  if (first_use) {
    storage->second = cpu_storage_over(argument.storage());
    xpu_storages_.emplace(storage->second.unsafeGetStorageImpl(), argument.storage());
  }
  const auto& memory = storage->second;
  entry->second = over(memory, argument, c10::DispatchKey::CPU);
  lowered_.push_back(
      {argument, entry->second, memory.unsafeGetStorageImpl(), memory.data_ptr().get(), memory.nbytes()});
  originals_.emplace(entry->second.unsafeGetTensorImpl(), argument);
  return entry->second;
}

c10::Storage Aliases::xpu_storage(const c10::Storage& cpu) {
  auto [entry, is_new] = xpu_storages_.try_emplace(cpu.unsafeGetStorageImpl());
  if (is_new) {
    entry->second = xpu_storage_over(cpu, device);
  }
  return entry->second;
}

void Aliases::settle() {
  for (auto& argument : lowered_) {
    auto* cpu = argument.cpu.unsafeGetTensorImpl();
    auto* xpu = argument.xpu.unsafeGetTensorImpl();
    const auto storage = argument.cpu.storage();
    if (storage.unsafeGetStorageImpl() != argument.storage) { // it was given another storage
      xpu->set_storage_keep_dtype(xpu_storage(storage));
    } else if (storage.data_ptr().get() != argument.data || storage.nbytes() != argument.bytes) {
      const auto& own = argument.xpu.storage();
      if (own.data_ptr().get() != storage.data_ptr().get()) { // reallocated: hand the new memory over
        c10::Storage memory(
            c10::Storage::use_byte_size_t(), storage.nbytes(),
            storage.unsafeGetStorageImpl()->set_data_ptr(c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU))),
            c10::GetCPUAllocator(), /*resizable=*/true);
        own.unsafeGetStorageImpl()->set_data_ptr_noswap(xpu_pointer_over(memory, own.device().index()));
        own.unsafeGetStorageImpl()->set_nbytes(memory.nbytes());
      }
    }
    if (cpu->storage_offset() != xpu->storage_offset()) {
      xpu->set_storage_offset(cpu->storage_offset());
    }
    if (cpu->sizes() != xpu->sizes() || cpu->strides() != xpu->strides()) {
      xpu->set_sizes_and_strides(cpu->sizes(), cpu->strides());
    }
  }
}

at::Tensor Aliases::up(const at::Tensor& result) {
  if (!result.defined()) {
    return result;
  }
  auto original = originals_.find(result.unsafeGetTensorImpl());
  if (original != originals_.end()) {
    return original->second;
  }
  if (!result.device().is_cpu() || device < 0 || !result.has_storage()) {
    return result;
  }
  auto raised = over(xpu_storage(result.storage()), result, c10::DispatchKey::XPU);
  originals_.emplace(result.unsafeGetTensorImpl(), raised);
  kept_.push_back(result);
  return raised;
}

} // namespace xpu_emu
