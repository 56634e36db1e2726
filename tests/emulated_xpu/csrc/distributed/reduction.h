// Which reductions and dtypes XCCL takes (torch-xpu-ops, src/xccl/ProcessGroupXCCL.cpp), and what oneCCL makes of AVG.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

namespace xpu_emu {

void check_dtype(const at::Tensor& tensor);
void check_same_dtype(const std::vector<at::Tensor>& tensors);

// A reduction as gloo does it, and a division afterwards.
struct Reduction {
  c10d::ReduceOp::RedOpType op = c10d::ReduceOp::SUM;
  int64_t divisor = 1;

  static Reduction of(const c10d::ReduceOp& asked, const at::Tensor& tensor, int group_size);
  void divide(const at::Tensor& sum) const;
};

} // namespace xpu_emu
