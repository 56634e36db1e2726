// An `xccl` process group: gloo moves the bytes, and what XCCL and oneCCL refuse is refused.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace xpu_emu {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<Tensors>;
using Milliseconds = std::chrono::milliseconds;

struct XcclOptions final : c10d::Backend::Options {
  bool is_high_priority_stream;
  explicit XcclOptions(bool high_priority = false)
      : c10d::Backend::Options("xccl"), is_high_priority_stream(high_priority) {}
};

// Some gloo works, and what is left to do when they are done: once, by whoever notices first.
class XcclWork final : public c10d::Work {
 public:
  XcclWork(
      int rank, c10d::OpType type, std::vector<WorkPtr> parts, Tensors outputs, std::function<void()> finish = {});

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  int sourceRank() const override;
  Tensors result() override { return outputs_; }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool wait(Milliseconds timeout) override;
  void abort() override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  void finish();

  std::vector<WorkPtr> parts_;
  Tensors outputs_;
  std::function<void()> finish_;
  std::once_flag finished_, future_made_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

class XcclBackend final : public c10d::Backend {
 public:
  XcclBackend(
      c10::intrusive_ptr<c10d::Store> store, c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size,
      c10::intrusive_ptr<XcclOptions> options);

  const std::string getBackendName() const override { return "xccl"; }
  c10::intrusive_ptr<Backend::Options> getBackendOptions() override { return options_; }
  void setTimeout(Milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsCoalescing() const override { return true; }
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr _reduce_scatter_base(
      at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& options) override;
  WorkPtr alltoall_base(
      at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits, std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  WorkPtr send(Tensors& tensors, int to, int tag) override;
  WorkPtr recv(Tensors& tensors, int from, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

 private:
  // oneCCL's rule for a communicator: each of its processes sees every device of it on its host.
  void connect(c10::DeviceIndex device);
  WorkPtr work(
      c10d::OpType type, std::vector<WorkPtr> parts, Tensors outputs, std::function<void()> finish = {});
  WorkPtr reduce_scatter_flat(
      c10d::OpType type, const at::Tensor& output, const at::Tensor& inputs, int64_t offset,
      const c10d::ReduceScatterOptions& options);

  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<c10d::Backend> gloo_;
  c10::intrusive_ptr<XcclOptions> options_;
  uint64_t sequence_ = 0;
  bool connected_ = false;
  bool coalescing_ = false;
  std::vector<WorkPtr> coalesced_;
};

} // namespace xpu_emu
