#include "distributed/xccl.h"

#include "device/alias.h"
#include "device/devices.h"
#include "device/late_copy.h"
#include "distributed/reduction.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/view_as_real.h>

namespace xpu_emu {

using c10d::OpType;

namespace {

constexpr const char* kOneTensor = "Expecting one tensor only but got multiple";

// ---- tensors as gloo takes them: CPU aliases of the xpu memory, after the checks of ProcessGroupXCCL ----------------

at::Tensor wire(const at::Tensor& tensor) {
  TORCH_CHECK_VALUE(is_xpu(tensor) && !tensor.is_sparse(), "Tensors must be XPU and dense");
  TORCH_CHECK_VALUE(tensor.is_contiguous(tensor.suggest_memory_format()), "Tensors must be contiguous");
  check_dtype(tensor);
  auto alias = cpu_alias(tensor);
  return at::isFloat8Type(tensor.scalar_type()) ? alias.view(at::kByte) : alias; // gloo has no float8
}

// For broadcast, all_reduce and reduce, which take complex tensors as pairs of numbers.
at::Tensor wire_pairs(const at::Tensor& tensor) {
  return wire(tensor.is_complex() ? at::view_as_real(tensor) : tensor);
}

Tensors wire(const Tensors& tensors) {
  Tensors result;
  for (const auto& tensor : tensors) {
    result.push_back(wire(tensor));
  }
  return result;
}

// Point to point, the memory is sent as it lies.
at::Tensor wire_point_to_point(const Tensors& tensors) {
  TORCH_CHECK(tensors.size() == 1, kOneTensor);
  const auto& tensor = tensors[0];
  TORCH_CHECK_VALUE(is_xpu(tensor) && !tensor.is_sparse(), "Tensors must be XPU and dense");
  TORCH_CHECK_VALUE(
      tensor.is_non_overlapping_and_dense(), "Tensors for P2P must be non-overlapping and dense");
  check_dtype(tensor);
  auto alias = cpu_alias(tensor).as_strided({tensor.numel()}, {1});
  return at::isFloat8Type(tensor.scalar_type()) ? alias.view(at::kByte) : alias;
}

Tensors flattened(const Tensors& tensors) {
  Tensors flat;
  for (const auto& tensor : tensors) {
    flat.push_back(tensor.reshape({-1}));
  }
  return flat;
}

Tensors flat(const TensorLists& lists) {
  Tensors all;
  for (const auto& list : lists) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

template <class Options>
Options with(Options options, c10d::ReduceOp::RedOpType op) {
  options.reduceOp = c10d::ReduceOp(op);
  return options;
}

} // namespace

XcclBackend::XcclBackend(
    c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size,
    c10::intrusive_ptr<XcclOptions> options)
    : Backend(rank, size), store_(std::move(store)), gloo_(std::move(gloo)), options_(std::move(options)) {}

void XcclBackend::setTimeout(Milliseconds timeout) {
  options_->timeout = timeout;
  gloo_->setTimeout(timeout);
}

WorkPtr XcclBackend::work(
    OpType type, std::vector<WorkPtr> parts, Tensors outputs, std::function<void()> finish) {
  ++sequence_;
  auto made = c10::make_intrusive<XcclWork>(
      getRank(), type, std::move(parts), std::move(outputs), std::move(finish));
  if (coalescing_) {
    coalesced_.push_back(made);
  }
  return made;
}

void XcclBackend::startCoalescing() {
  coalescing_ = true;
  coalesced_.clear();
}

WorkPtr XcclBackend::endCoalescing() {
  coalescing_ = false;
  return work(OpType::COALESCED, std::exchange(coalesced_, {}), {});
}

WorkPtr XcclBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  TORCH_CHECK(tensors.size() == 1, kOneTensor);
  Tensors buffers{wire_pairs(tensors[0])};
  connect(tensors[0].device().index());
  return work(OpType::BROADCAST, {gloo_->broadcast(buffers, options)}, tensors);
}

WorkPtr XcclBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  TORCH_CHECK(tensors.size() == 1, kOneTensor);
  const auto reduction = Reduction::of(options.reduceOp, tensors[0], getSize());
  Tensors buffers{wire_pairs(tensors[0])};
  connect(tensors[0].device().index());
  return work(
      OpType::ALLREDUCE, {gloo_->allreduce(buffers, with(options, reduction.op))}, tensors,
      [reduction, buffer = buffers[0]] { reduction.divide(buffer); });
}

WorkPtr XcclBackend::allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) {
  check_same_dtype(tensors);
  std::vector<WorkPtr> parts;
  for (const auto& tensor : tensors) {
    Tensors one{tensor};
    parts.push_back(allreduce(one, options));
  }
  return work(OpType::ALLREDUCE_COALESCED, std::move(parts), tensors);
}

WorkPtr XcclBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  TORCH_CHECK(tensors.size() == 1, kOneTensor);
  const auto reduction = Reduction::of(options.reduceOp, tensors[0], getSize());
  const bool root = getRank() == options.rootRank + options.rootTensor;
  auto buffer = wire_pairs(tensors[0]);
  Tensors buffers{root ? buffer : buffer.clone()}; // gloo leaves partial sums with the others
  connect(tensors[0].device().index());
  return work(
      OpType::REDUCE, {gloo_->reduce(buffers, with(options, reduction.op))}, tensors,
      [=, buffer = buffers[0]] { reduction.divide(buffer); });
}

WorkPtr XcclBackend::allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  TORCH_CHECK(inputs.size() == 1 && outputs.size() == 1, kOneTensor);
  auto input = wire(inputs[0]);
  auto lists = wire(outputs[0]);
  connect(inputs[0].device().index());
  std::vector<WorkPtr> parts;
  for (size_t rank = 0; rank < lists.size(); ++rank) { // one broadcast a rank: their sizes may differ
    if (static_cast<int>(rank) == getRank()) {
      lists[rank].copy_(input);
    }
    Tensors one{lists[rank]};
    parts.push_back(gloo_->broadcast(one, {static_cast<int64_t>(rank), 0, options.timeout, options.asyncOp}));
  }
  return work(OpType::ALLGATHER, std::move(parts), outputs[0]);
}

WorkPtr XcclBackend::_allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) {
  TORCH_CHECK_TYPE(input.dtype() == output.dtype(), "output tensor must have the same type as input tensor");
  TORCH_CHECK_VALUE(
      input.numel() * getSize() == output.numel(),
      "output tensor size must be equal to world_size times input tensor size");
  auto to = wire(output);
  auto from = wire(input); // as FSDP has it, a part of the output: gloo copies it to where it lies
  connect(input.device().index());
  return work(OpType::_ALLGATHER_BASE, {gloo_->_allgather_base(to, from, options)}, {output});
}

WorkPtr XcclBackend::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) {
  std::vector<WorkPtr> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    parts.push_back(_allgather_base(outputs[i], inputs[i], options));
  }
  return work(OpType::ALLGATHER_COALESCED, std::move(parts), outputs);
}

WorkPtr XcclBackend::gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) {
  TORCH_CHECK(inputs.size() == 1, kOneTensor);
  TensorLists lists;
  for (const auto& list : outputs) {
    lists.push_back(wire(list));
  }
  auto from = wire(inputs);
  connect(inputs[0].device().index());
  return work(OpType::GATHER, {gloo_->gather(lists, from, options)}, flat(outputs));
}

WorkPtr XcclBackend::scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) {
  TORCH_CHECK(outputs.size() == 1, kOneTensor);
  TensorLists lists;
  for (const auto& list : inputs) {
    lists.push_back(wire(list));
  }
  auto to = wire(outputs);
  connect(outputs[0].device().index());
  return work(OpType::SCATTER, {gloo_->scatter(to, lists, options)}, outputs);
}

// gloo reduces everything everywhere, in a copy; each rank keeps its part, which may lie in the inputs.
WorkPtr XcclBackend::reduce_scatter_flat(
    OpType type, const at::Tensor& output, const at::Tensor& inputs, int64_t offset,
    const c10d::ReduceScatterOptions& options) {
  const auto reduction = Reduction::of(options.reduceOp, output, getSize());
  auto to = wire(output);
  connect(output.device().index());
  Tensors buffers{inputs};
  c10d::AllreduceOptions all{c10d::ReduceOp(reduction.op), options.timeout, options.asyncOp, std::nullopt};
  return work(type, {gloo_->allreduce(buffers, all)}, {output}, [=, sum = buffers[0]] {
    to.copy_(sum.narrow(0, offset, to.numel()).view(to.sizes()));
    reduction.divide(to);
  });
}

WorkPtr XcclBackend::reduce_scatter(
    Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK(outputs.size() == 1 && inputs.size() == 1, kOneTensor);
  const auto parts = flattened(wire(inputs[0]));
  int64_t offset = 0;
  for (int rank = 0; rank < getRank(); ++rank) {
    offset += parts.at(rank).numel();
  }
  return reduce_scatter_flat(OpType::REDUCE_SCATTER, outputs[0], at::cat(parts), offset, options);
}

WorkPtr XcclBackend::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) {
  TORCH_CHECK_TYPE(input.dtype() == output.dtype(), "output tensor must have the same type as input tensor");
  TORCH_CHECK_VALUE(
      input.numel() == output.numel() * getSize(),
      "input tensor must be the same size as output size times world size");
  return reduce_scatter_flat(
      OpType::_REDUCE_SCATTER_BASE, output, wire(input).reshape({-1}).clone(), getRank() * output.numel(), options);
}

WorkPtr XcclBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) {
  std::vector<WorkPtr> parts;
  for (size_t i = 0; i < outputs.size(); ++i) {
    parts.push_back(_reduce_scatter_base(outputs[i], inputs[i], options));
  }
  return work(OpType::REDUCE_SCATTER_TENSOR_COALESCED, std::move(parts), outputs);
}

WorkPtr XcclBackend::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
    const c10d::AllToAllOptions& options) {
  auto to = wire(output), from = wire(input);
  connect(input.device().index());
  return work(
      OpType::ALLTOALL_BASE, {gloo_->alltoall_base(to, from, output_splits, input_splits, options)}, {output});
}

WorkPtr XcclBackend::alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) {
  const auto to = wire(outputs), from = wire(inputs);
  connect(inputs.at(0).device().index());
  std::vector<int64_t> output_splits, input_splits;
  for (size_t rank = 0; rank < to.size(); ++rank) {
    output_splits.push_back(to[rank].numel());
    input_splits.push_back(from[rank].numel());
  }
  auto sent = at::cat(flattened(from));
  auto received = at::cat(flattened(to));
  return work(
      OpType::ALLTOALL, {gloo_->alltoall_base(received, sent, output_splits, input_splits, options)}, outputs,
      [=] {
        const auto parts = received.split_with_sizes(output_splits);
        for (size_t rank = 0; rank < to.size(); ++rank) {
          to[rank].copy_(parts[rank].view(to[rank].sizes()));
        }
      });
}

WorkPtr XcclBackend::send(Tensors& tensors, int to, int tag) {
  Tensors buffers{wire_point_to_point(tensors)};
  return work(OpType::SEND, {gloo_->send(buffers, to, tag)}, tensors);
}

WorkPtr XcclBackend::recv(Tensors& tensors, int from, int tag) {
  Tensors buffers{wire_point_to_point(tensors)};
  return work(OpType::RECV, {gloo_->recv(buffers, from, tag)}, tensors);
}

WorkPtr XcclBackend::recvAnysource(Tensors& tensors, int tag) {
  Tensors buffers{wire_point_to_point(tensors)};
  return work(OpType::RECVANYSOURCE, {gloo_->recvAnysource(buffers, tag)}, tensors);
}

WorkPtr XcclBackend::barrier(const c10d::BarrierOptions& options) {
  const auto device =
      options.device_ids.empty() ? current_device() : static_cast<c10::DeviceIndex>(options.device_ids[0]);
  connect(device);
  c10d::BarrierOptions plain;
  plain.timeout = options.timeout;
  plain.asyncOp = options.asyncOp;
  return work(OpType::BARRIER, {gloo_->barrier(plain)}, {}, [device] { late::finish_current_stream(device); });
}

} // namespace xpu_emu
