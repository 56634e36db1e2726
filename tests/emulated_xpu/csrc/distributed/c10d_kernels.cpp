// The c10d operators for xpu tensors: a CPU build has none, and the general fallback would send them to gloo, past xccl.
#include "distributed/xccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

namespace xpu_emu {
namespace {

using at::Tensor;
using at::TensorList;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Op = c10::intrusive_ptr<c10d::ReduceOp>;

c10::intrusive_ptr<c10d::Backend> backend(const Group& group) {
  return group->getBackend(c10::DeviceType::XPU);
}

WorkPtr send(TensorList tensors, const Group& group, int64_t to, int64_t tag) {
  auto list = tensors.vec();
  return backend(group)->send(list, static_cast<int>(to), static_cast<int>(tag));
}

WorkPtr recv_(TensorList tensors, const Group& group, int64_t from, int64_t tag) {
  auto list = tensors.vec();
  return backend(group)->recv(list, static_cast<int>(from), static_cast<int>(tag));
}

WorkPtr recv_any_source_(TensorList tensors, const Group& group, int64_t tag) {
  auto list = tensors.vec();
  return backend(group)->recvAnysource(list, static_cast<int>(tag));
}

WorkPtr reduce_(
    TensorList tensors, const Group& group, const Op& op, int64_t root_rank, int64_t root_tensor, bool async,
    int64_t timeout) {
  auto list = tensors.vec();
  return backend(group)->reduce(list, {*op, root_rank, root_tensor, Milliseconds(timeout), async});
}

std::tuple<Tensors, WorkPtr> broadcast_(
    TensorList tensors, const Group& group, int64_t root_rank, int64_t root_tensor, bool async, int64_t timeout) {
  auto list = tensors.vec();
  auto work = backend(group)->broadcast(list, {root_rank, root_tensor, Milliseconds(timeout), async});
  return {std::move(list), work};
}

std::tuple<Tensors, WorkPtr> allreduce_(
    TensorList tensors, const Group& group, const Op& op, const std::optional<Tensor>& sparse_indices, bool async,
    int64_t timeout) {
  auto list = tensors.vec();
  auto work = backend(group)->allreduce(list, {*op, Milliseconds(timeout), async, sparse_indices});
  return {std::move(list), work};
}

WorkPtr allreduce_coalesced_(TensorList tensors, const Group& group, const Op& op, bool async, int64_t timeout) {
  auto list = tensors.vec();
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = *op;
  options.timeout = Milliseconds(timeout);
  options.asyncOp = async;
  return backend(group)->allreduce_coalesced(list, options);
}

std::tuple<TensorLists, WorkPtr> allgather_(
    const TensorLists& outputs, TensorList inputs, const Group& group, bool async, int64_t timeout) {
  auto input_list = inputs.vec();
  auto work =
      backend(group)->allgather(const_cast<TensorLists&>(outputs), input_list, {Milliseconds(timeout), async});
  return {outputs, work};
}

std::tuple<Tensor, WorkPtr> _allgather_base_(
    Tensor& output, Tensor& input, const Group& group, bool async, int64_t timeout) {
  auto work = backend(group)->_allgather_base(output, input, {Milliseconds(timeout), async});
  return {output, work};
}

WorkPtr allgather_into_tensor_coalesced_(TensorList outputs, TensorList inputs, const Group& group, bool async) {
  auto output_list = outputs.vec(), input_list = inputs.vec();
  return backend(group)->allgather_into_tensor_coalesced(output_list, input_list, {c10d::kUnsetTimeout, async});
}

std::tuple<Tensors, WorkPtr> reduce_scatter_(
    const TensorList& outputs, const TensorLists& inputs, const Group& group, const Op& op, bool async,
    int64_t timeout) {
  auto output_list = outputs.vec();
  auto work = backend(group)->reduce_scatter(
      output_list, const_cast<TensorLists&>(inputs), {*op, Milliseconds(timeout), async});
  return {std::move(output_list), work};
}

std::tuple<Tensor, WorkPtr> _reduce_scatter_base_(
    Tensor& output, Tensor& input, const Group& group, const Op& op, bool async, int64_t timeout) {
  auto work = backend(group)->_reduce_scatter_base(output, input, {*op, Milliseconds(timeout), async});
  return {output, work};
}

WorkPtr reduce_scatter_tensor_coalesced_(
    TensorList outputs, TensorList inputs, const Group& group, const Op& op, bool async, int64_t timeout) {
  auto output_list = outputs.vec(), input_list = inputs.vec();
  return backend(group)->reduce_scatter_tensor_coalesced(
      output_list, input_list, {*op, Milliseconds(timeout), async});
}

WorkPtr gather_(
    const TensorLists& outputs, const TensorList& inputs, const Group& group, int64_t root, bool async,
    int64_t timeout) {
  auto input_list = inputs.vec();
  return backend(group)->gather(const_cast<TensorLists&>(outputs), input_list, {root, Milliseconds(timeout), async});
}

std::tuple<Tensors, WorkPtr> scatter_(
    const TensorList& outputs, const TensorLists& inputs, const Group& group, int64_t root, bool async,
    int64_t timeout) {
  auto output_list = outputs.vec();
  auto work =
      backend(group)->scatter(output_list, const_cast<TensorLists&>(inputs), {root, Milliseconds(timeout), async});
  return {std::move(output_list), work};
}

std::tuple<Tensors, WorkPtr> alltoall_(
    const TensorList& outputs, const TensorList& inputs, const Group& group, bool async, int64_t timeout) {
  auto output_list = outputs.vec(), input_list = inputs.vec();
  auto work = backend(group)->alltoall(output_list, input_list, {Milliseconds(timeout), async});
  return {std::move(output_list), work};
}

WorkPtr alltoall_base_(
    Tensor& output, Tensor& input, const Group& group, std::vector<int64_t> output_splits,
    std::vector<int64_t> input_splits, bool async, int64_t timeout) {
  return backend(group)->alltoall_base(
      output, input, output_splits, input_splits, {Milliseconds(timeout), async});
}

WorkPtr barrier(
    Tensor, const Group& group, const std::vector<int64_t>& device_ids, bool async, int64_t timeout) {
  c10d::BarrierOptions options;
  options.device_ids = device_ids;
  options.timeout = Milliseconds(timeout);
  options.asyncOp = async;
  return backend(group)->barrier(options);
}

TORCH_LIBRARY_IMPL(c10d, XPU, library) {
  library.impl("send", TORCH_FN(send));
  library.impl("recv_", TORCH_FN(recv_));
  library.impl("recv_any_source_", TORCH_FN(recv_any_source_));
  library.impl("reduce_", TORCH_FN(reduce_));
  library.impl("broadcast_", TORCH_FN(broadcast_));
  library.impl("allreduce_", TORCH_FN(allreduce_));
  library.impl("allreduce_coalesced_", TORCH_FN(allreduce_coalesced_));
  library.impl("allgather_", TORCH_FN(allgather_));
  library.impl("_allgather_base_", TORCH_FN(_allgather_base_));
  library.impl("allgather_into_tensor_coalesced_", TORCH_FN(allgather_into_tensor_coalesced_));
  library.impl("reduce_scatter_", TORCH_FN(reduce_scatter_));
  library.impl("_reduce_scatter_base_", TORCH_FN(_reduce_scatter_base_));
  library.impl("reduce_scatter_tensor_coalesced_", TORCH_FN(reduce_scatter_tensor_coalesced_));
  library.impl("gather_", TORCH_FN(gather_));
  library.impl("scatter_", TORCH_FN(scatter_));
  library.impl("alltoall_", TORCH_FN(alltoall_));
  library.impl("alltoall_base_", TORCH_FN(alltoall_base_));
  library.impl("barrier", TORCH_FN(barrier));
}

} // namespace
} // namespace xpu_emu
