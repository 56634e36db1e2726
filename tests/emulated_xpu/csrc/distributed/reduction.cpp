#include "distributed/reduction.h"

#include "device/devices.h"

#include <ATen/ops/div.h>

namespace xpu_emu {
namespace {

using c10d::ReduceOp;

std::string name_of(const ReduceOp& op) {
  static const char* names[] = {"SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM", "UNUSED"};
  return names[op.op_];
}

// The sizes at which oneCCL before 2026.0 divides twice (torch-xpu-ops#3020): 0-dim, 1, 2, 4, 28, 30, 31, 33 do;
// 8, 16, 24, 32, 48 and more don't. A rule that fits what was measured, no more.
bool divides_twice(const at::Tensor& tensor) {
  return tensor.numel() < 48 && tensor.numel() % 8 != 0;
}

int64_t average_divisor(const at::Tensor& tensor, int64_t group_size) {
  const auto how = knob("XPU_EMU_XCCL_AVG", "raise");
  TORCH_CHECK(
      how != "raise", // torch-xpu-ops#2361
      "oneCCL: coll_param.cpp:455 validate: EXCEPTION: average operation is not supported for the scheduler path");
  TORCH_CHECK(how == "allow" || how == "twice", "XPU_EMU_XCCL_AVG: raise, allow or twice, not ", how);
  return how == "twice" && divides_twice(tensor) ? group_size * group_size : group_size;
}

} // namespace

void check_dtype(const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  switch (dtype) {
    case at::kByte:
    case at::kChar:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
    case at::kBool:
      return;
    default:
      TORCH_CHECK_TYPE(
          at::isFloat8Type(dtype), "Input tensor data type is not supported for XCCL process group: ", dtype);
  }
}

void check_same_dtype(const std::vector<at::Tensor>& tensors) {
  TORCH_CHECK_VALUE(!tensors.empty(), "Tensor list must be nonempty");
  for (const auto& tensor : tensors) {
    TORCH_CHECK_TYPE(tensor.dtype() == tensors[0].dtype(), "Tensors must have identical type");
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), "Expected list of tensors on the same device");
  }
}

Reduction Reduction::of(const ReduceOp& asked, const at::Tensor& tensor, int group_size) {
  TORCH_CHECK(
      !at::isFloat8Type(tensor.scalar_type()), "Float8 dtypes are not currently supported for XCCL reductions");
  TORCH_CHECK(
      !tensor.is_complex() || asked.op_ == ReduceOp::SUM || asked.op_ == ReduceOp::AVG, "reduction ", name_of(asked),
      " isn't supported on complex tensors");
  const bool boolean = tensor.scalar_type() == at::kBool;
  switch (asked.op_) {
    case ReduceOp::SUM:
      return {boolean ? ReduceOp::MAX : ReduceOp::SUM};
    case ReduceOp::PRODUCT:
    case ReduceOp::MIN:
    case ReduceOp::MAX:
      return {asked.op_};
    case ReduceOp::AVG:
      TORCH_CHECK_TYPE(!boolean, "Cannot use ReduceOp.AVG with boolean inputs");
      return {ReduceOp::SUM, average_divisor(tensor, group_size)};
    default: // torch-xpu-ops#1948 asks for PREMUL_SUM
      C10_THROW_ERROR(ValueError, "Cannot use ReduceOp." + name_of(asked) + " with XCCL");
  }
}

void Reduction::divide(const at::Tensor& sum) const {
  if (divisor == 1) {
    return;
  }
  if (at::isIntegralType(sum.scalar_type(), /*includeBool=*/false)) {
    sum.div_(divisor, "trunc");
  } else {
    sum.div_(divisor);
  }
}

} // namespace xpu_emu
