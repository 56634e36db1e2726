#include "device/kernels.h"

#include "device/alias.h"
#include "device/devices.h"
#include "device/fallback.h"
#include "device/late_copy.h"
#include "device/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include <limits>
#include <unordered_set>

namespace xpu_emu {
namespace {

using at::Tensor;
using Layout = std::optional<at::Layout>;
using Dtype = std::optional<at::ScalarType>;
using OptionalDevice = std::optional<c10::Device>;

// ---- memory ---------------------------------------------------------------------------------------------------------

c10::DeviceIndex checked(OptionalDevice device, std::optional<bool> pin) {
  TORCH_CHECK(!pin.value_or(false), "Only dense CPU tensors can be pinned");
  const auto index = resolve(device.value_or(c10::Device(kXPU))).index();
  TORCH_CHECK(
      index < device_count(), "The device index is out of range. It must be in [0, ",
      static_cast<int>(device_count()), "), but got ", static_cast<int>(index), ".");
  return index;
}

Tensor empty(
    at::IntArrayRef size, Dtype dtype, Layout, OptionalDevice device, std::optional<bool> pin,
    std::optional<at::MemoryFormat> format) {
  DeviceScope scope(checked(device, pin));
  return at::detail::empty_generic(
      size, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::XPU), c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, Dtype dtype, Layout, OptionalDevice device,
    std::optional<bool> pin) {
  DeviceScope scope(checked(device, pin));
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), c10::DispatchKeySet(c10::DispatchKey::XPU), c10::dtype_or_default(dtype));
}

const Tensor& resize_(const Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  DeviceScope scope(self.device().index());
  at::native::resize_impl_cpu_(self.unsafeGetTensorImpl(), size, std::nullopt);
  if (format) {
    self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return self;
}

Tensor& set_storage_offset_(
    Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef size, at::IntArrayRef stride) {
  DeviceScope scope(self.device().index());
  return at::native::set_storage_cpu_(self, std::move(storage), offset, size, stride);
}

Tensor& set_storage_(Tensor& self, at::Storage storage) {
  const auto elements = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage_offset_(self, std::move(storage), 0, {elements}, {});
}

Tensor& set_empty_(Tensor& self) {
  DeviceScope scope(self.device().index());
  at::Storage storage(
      at::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(), /*resizable=*/true);
  return set_storage_offset_(self, std::move(storage), 0, {0}, {});
}

void record_stream(Tensor&, at::Stream) {}

// ---- copies ---------------------------------------------------------------------------------------------------------

Tensor& copy_(Tensor& self, const Tensor& source, bool non_blocking) {
  const bool to_device = is_xpu(self);
  const bool from_device = is_xpu(source);
  const auto to = to_device ? cpu_alias(self) : self;
  const auto from = from_device ? cpu_alias(source) : source;
  const bool crosses = to_device != from_device;
  if (!late::enabled() || !crosses) {
    to.copy_(from);
    return self;
  }
  DeviceScope scope((to_device ? self : source).device().index());
  if (from_device && non_blocking) {
    late::download(to, from);
  } else if (to_device && non_blocking && from.is_pinned()) {
    late::upload(to, from);
  } else {
    if (!non_blocking) {
      late::finish_current_stream(current_device());
    }
    to.copy_(from); // from pageable memory: torch stages the bytes before it returns
  }
  return self;
}

void foreach_copy_(at::TensorList self, at::TensorList source, bool non_blocking) {
  TORCH_CHECK(self.size() == source.size(), "Tensor lists must have the same number of tensors");
  for (size_t i = 0; i < self.size(); ++i) {
    self[i].copy_(source[i], non_blocking);
  }
}

// ---- attention ------------------------------------------------------------------------------------------------------

// torch's own asks a DispatchStub whether xpu has a kernel, and a build without XPU asserts on the question. The
// mathematical form is differentiable by itself.
Tensor scaled_dot_product_attention(
    const Tensor& query, const Tensor& key, const Tensor& value, const std::optional<Tensor>& mask, double dropout,
    bool causal, std::optional<double> scale, bool gqa) {
  auto bias = mask;
  if (bias && bias->defined() && bias->scalar_type() == at::kBool) {
    bias = at::zeros(bias->sizes(), query.options())
               .masked_fill_(bias->logical_not(), -std::numeric_limits<double>::infinity());
  }
  return std::get<0>(at::_scaled_dot_product_attention_math(
      query, key, value, bias, dropout, causal, /*dropout_mask=*/std::nullopt, scale, gqa));
}

TORCH_LIBRARY_IMPL(aten, AutogradXPU, library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

TORCH_LIBRARY_IMPL(aten, XPU, library) {
  library.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

// Operators that are registered after install_kernels, of other libraries too.
TORCH_LIBRARY_IMPL(_, XPU, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&cpu_kernel>());
}

std::unordered_set<std::string> install_own(torch::Library& library) {
  std::unordered_set<std::string> names;
  const auto own = [&](const char* name, auto&& kernel) {
    names.insert(name);
    library.impl(name, std::forward<decltype(kernel)>(kernel));
  };
  own("empty.memory_format", TORCH_FN(empty));
  own("empty_strided", TORCH_FN(empty_strided));
  own("resize_", TORCH_FN(resize_));
  own("set_.source_Storage_storage_offset", TORCH_FN(set_storage_offset_));
  own("set_.source_Storage", TORCH_FN(set_storage_));
  own("set_.source_Tensor", TORCH_FN(at::native::set_tensor_));
  own("set_", TORCH_FN(set_empty_));
  own("view", TORCH_FN(at::native::view));
  own("as_strided", TORCH_FN(at::native::as_strided_tensorimpl));
  own("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  own("unfold", TORCH_FN(at::native::unfold));
  own("record_stream", TORCH_FN(record_stream));
  own("copy_", TORCH_FN(copy_));
  own("_foreach_copy_", TORCH_FN(foreach_copy_));
  return names;
}

} // namespace

int install_kernels() {
  // Kept for the life of the process: a Library takes its kernels with it.
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::XPU, __FILE__, __LINE__);
  const auto own = install_own(*library);
  // Composite operators whose bodies would look for a kernel of xpu's own.
  static const std::unordered_set<std::string> composites = {"convolution", "convolution_backward", "_convolution"};
  int count = static_cast<int>(own.size());
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& op : dispatcher.getAllOpNames()) {
    if (op.name.rfind("aten::", 0) != 0) {
      continue;
    }
    auto name = op.name.substr(6) + (op.overload_name.empty() ? "" : "." + op.overload_name);
    const auto schema = dispatcher.findSchema(op);
    if (own.count(name) || !schema) {
      continue;
    }
    // Also where a composite would do: the device then takes the same path as the CPU, to the last bit.
    if (schema->hasKernelForDispatchKey(c10::DispatchKey::CPU) || composites.count(name)) {
      library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<&cpu_kernel>());
      ++count;
    }
  }
  return count;
}

} // namespace xpu_emu
