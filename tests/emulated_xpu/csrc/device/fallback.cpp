#include "device/fallback.h"

#include "device/alias.h"
#include "device/devices.h"
#include "device/generator.h"
#include "device/late_copy.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>

#include <unordered_set>

namespace xpu_emu {
namespace {

using c10::FunctionSchema;
using c10::IValue;
using torch::jit::Stack;

// Every tensor of an argument, through `visit(at::Tensor)`; what it returns takes the tensor's place.
template <class Visit>
void map_tensors(IValue& value, Visit visit) {
  if (value.isTensor()) {
    value = visit(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& tensor : value.toTensorList()) {
      mapped.push_back(visit(tensor));
    }
    value = std::move(mapped);
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
      mapped.push_back(tensor ? std::make_optional(visit(*tensor)) : std::nullopt);
    }
    value = std::move(mapped);
  }
}

// The operators for which tensors of different devices are legal.
bool mixes_devices(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::_copy_from", "aten::_copy_from_and_resize", "aten::index", "aten::index_put_", "aten::index_put",
      "aten::_index_put_impl_", "aten::_unsafe_index", "aten::_unsafe_index_put", "aten::_unsafe_masked_index",
      "aten::set_", "aten::_pack_padded_sequence"};
  return names.count(name) > 0;
}

void check_same_device(const FunctionSchema& schema, c10::ArrayRef<IValue> arguments) {
  if (mixes_devices(schema.name())) {
    return;
  }
  std::optional<c10::Device> common;
  const auto check = [&](const at::Tensor& tensor) {
    if (!tensor.defined() || (tensor.dim() == 0 && tensor.is_cpu())) {
      return;
    }
    common = common.value_or(tensor.device());
    TORCH_CHECK(
        *common == tensor.device(), "Expected all tensors to be on the same device, but found at least two devices, ",
        *common, " and ", tensor.device(), "! (when checking arguments for ", schema.name(), ")");
  };
  for (const auto& value : arguments) {
    if (value.isTensor()) {
      check(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        check(tensor);
      }
    } else if (value.isOptionalTensorList()) {
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorList()) {
        if (tensor) {
          check(*tensor);
        }
      }
    }
  }
}

// Random operators draw from the device's generator. Those that take a generator get a CPU one with its seed; the others
// use torch's default CPU generator, which is seeded for the call and put back. The mutex keeps two threads of ours
// apart; a CPU operator that draws at the same moment in another thread isn't kept out.
class RandomState {
 public:
  RandomState(const c10::OperatorHandle& op, Stack& stack, size_t first, c10::DeviceIndex device) {
    const auto& arguments = op.schema().arguments();
    IValue* slot = nullptr;
    for (size_t i = 0; i < arguments.size(); ++i) {
      auto& value = stack[first + i];
      if (value.isGenerator() || (value.isNone() && arguments[i].name() == "generator")) {
        slot = &value;
      }
    }
    if (slot == nullptr && !op.hasTag(at::Tag::nondeterministic_seeded)) {
      return;
    }
    const bool given = slot != nullptr && slot->isGenerator();
    const auto seed = draw_seed(given ? slot->toGenerator() : default_generator(device));
    if (slot != nullptr) {
      *slot = at::detail::createCPUGenerator(seed);
      return;
    }
    static std::recursive_mutex mutex;
    exclusive_ = std::unique_lock(mutex);
    auto generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard guard(generator.mutex());
    saved_ = generator.get_state();
    generator.set_current_seed(seed);
  }
  ~RandomState() {
    if (saved_.defined()) {
      auto generator = at::detail::getDefaultCPUGenerator();
      std::lock_guard guard(generator.mutex());
      generator.set_state(saved_);
    }
  }

 private:
  at::Tensor saved_;
  std::unique_lock<std::recursive_mutex> exclusive_;
};

// What hands a value, or a shape that depends on values, to the host waits for the stream.
bool reads_back(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::data_dependent_output) || op.hasTag(at::Tag::dynamic_output_shape);
}

} // namespace

void cpu_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  static const bool trace = knob("XPU_EMU_TRACE", "0") == "1";
  const auto& schema = op.schema();
  if (trace) {
    fprintf(stderr, "[xpu_emu] %s.%s\n", schema.name().c_str(), schema.overload_name().c_str());
  }
  const size_t first = stack->size() - schema.arguments().size();
  check_same_device(schema, c10::ArrayRef<IValue>(*stack).slice(first));

  Aliases aliases;
  late::settle_uploads();
  for (size_t i = first; i < stack->size(); ++i) {
    auto& value = (*stack)[i];
    map_tensors(value, [&](const at::Tensor& tensor) { return aliases.down(tensor); });
    if (value.isDevice() && value.toDevice().type() == kXPU) {
      if (aliases.device < 0) {
        aliases.device = resolve(value.toDevice()).index();
      }
      value = c10::Device(c10::DeviceType::CPU);
    }
  }
  if (aliases.device < 0) {
    aliases.device = current_device();
  }
  {
    DeviceScope scope(aliases.device);
    if (late::enabled() && reads_back(op)) {
      late::finish_current_stream(aliases.device);
    }
    RandomState random(op, *stack, first, aliases.device);
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  aliases.settle();
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    map_tensors((*stack)[i], [&](const at::Tensor& tensor) { return aliases.up(tensor); });
  }
}

} // namespace xpu_emu
