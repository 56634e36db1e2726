#include "device/devices.h"
#include "distributed/xccl.h"

namespace xpu_emu {

XcclWork::XcclWork(
    int rank, c10d::OpType type, std::vector<WorkPtr> parts, Tensors outputs, std::function<void()> finish)
    : Work(rank, type), parts_(std::move(parts)), outputs_(std::move(outputs)), finish_(std::move(finish)) {}

void XcclWork::finish() {
  std::call_once(finished_, [this] {
    if (finish_) {
      finish_();
    }
  });
}

bool XcclWork::isCompleted() {
  for (const auto& part : parts_) {
    if (!part->isCompleted()) {
      return false;
    }
  }
  finish();
  return true;
}

bool XcclWork::isSuccess() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr XcclWork::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) {
      return error;
    }
  }
  return nullptr;
}

int XcclWork::sourceRank() const {
  return parts_.at(0)->sourceRank();
}

bool XcclWork::wait(Milliseconds timeout) {
  for (const auto& part : parts_) {
    part->wait(timeout);
  }
  finish();
  return true;
}

void XcclWork::abort() {
  for (const auto& part : parts_) {
    part->abort();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> XcclWork::getFuture() {
  std::call_once(future_made_, [this] {
    const auto device = outputs_.empty() ? c10::Device(kXPU, current_device()) : outputs_[0].device();
    future_ = c10::make_intrusive<c10::ivalue::Future>(
        c10::ListType::create(c10::TensorType::get()), std::vector<c10::Device>{device});
    if (parts_.empty()) {
      finish();
      future_->markCompleted(c10::IValue(outputs_));
      return;
    }
    auto left = std::make_shared<std::atomic<size_t>>(parts_.size());
    auto self = c10::intrusive_ptr<XcclWork>::unsafe_reclaim_from_nonowning(this);
    for (const auto& part : parts_) {
      part->getFuture()->addCallback([self, left](c10::ivalue::Future& part_done) {
        if (part_done.hasError()) {
          self->future_->setErrorIfNeeded(part_done.exception_ptr());
        } else if (--*left == 0) {
          self->finish();
          self->future_->markCompleted(c10::IValue(self->outputs_));
        }
      });
    }
  });
  return future_;
}

} // namespace xpu_emu
