#include "device/late_copy.h"

#include "device/devices.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/bitwise_not.h>
#include <ATen/ops/copy.h>
#include <ATen/ops/fill.h>

#include <atomic>
#include <deque>
#include <limits>
#include <map>
#include <mutex>

namespace xpu_emu::late {
namespace {

using StreamKey = std::pair<c10::DeviceIndex, int64_t>;

struct Entry {
  enum Kind { Download, Upload, Wait } kind;
  uint64_t sequence;
  at::Tensor to;   // holds the memory, as the real allocators do until a copy is done
  at::Tensor from; // Download: the bytes at the time of the call
  Mark awaited;    // Wait
};

std::recursive_mutex mutex;
std::map<StreamKey, std::deque<Entry>> queues;
uint64_t last_sequence = 0;
std::atomic<int> uploads{0};

void enqueue(StreamKey key, Entry entry) {
  entry.sequence = ++last_sequence;
  uploads += entry.kind == Entry::Upload;
  queues[key].push_back(std::move(entry));
}

void spoil(const at::Tensor& host, const at::Tensor& coming) {
  if (host.is_floating_point() || host.is_complex()) {
    host.fill_(std::numeric_limits<double>::quiet_NaN());
  } else {
    host.copy_(coming.bitwise_not()); // of a bool: logical not
  }
}

void finish_up_to(StreamKey key, uint64_t sequence);

void apply(const Entry& entry) {
  if (entry.kind == Entry::Wait) {
    finish_up_to({entry.awaited.device, entry.awaited.stream}, entry.awaited.sequence);
    return;
  }
  if (entry.kind == Entry::Upload) {
    uploads -= 1;
    // Its source may itself be on its way from a device.
    for (auto& [key, queue] : queues) {
      for (const auto& other : queue) {
        if (other.kind == Entry::Download && other.sequence < entry.sequence &&
            other.to.storage().data() == entry.from.storage().data()) {
          finish_up_to(key, other.sequence);
          break; // the queue has changed
        }
      }
    }
  }
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  entry.to.copy_(entry.from);
}

void finish_up_to(StreamKey key, uint64_t sequence) {
  auto& queue = queues[key];
  while (!queue.empty() && queue.front().sequence <= sequence) {
    const auto entry = std::move(queue.front());
    queue.pop_front();
    apply(entry);
  }
}

bool pending(const Mark& mark) {
  const auto& queue = queues[{mark.device, mark.stream}];
  return !queue.empty() && queue.front().sequence <= mark.sequence;
}

StreamKey here() {
  return {current_device(), current_stream(current_device())};
}

} // namespace

bool enabled() {
  static const bool on = knob("XPU_EMU_LATE_COPY", "0") == "1";
  return on;
}

void download(const at::Tensor& host, const at::Tensor& device) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  auto bytes = device.to(host.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  std::lock_guard guard(mutex);
  spoil(host, bytes);
  enqueue(here(), {Entry::Download, 0, host, std::move(bytes), {}});
}

void upload(const at::Tensor& device, const at::Tensor& host) {
  std::lock_guard guard(mutex);
  enqueue(here(), {Entry::Upload, 0, device, host, {}});
}

Mark mark(const c10::Stream& stream) {
  std::lock_guard guard(mutex);
  return {stream.device_index(), stream.id(), last_sequence};
}

void wait_in_stream(const c10::Stream& stream, const Mark& awaited) {
  std::lock_guard guard(mutex);
  if (pending(awaited)) {
    enqueue({stream.device_index(), stream.id()}, {Entry::Wait, 0, {}, {}, awaited});
  }
}

void finish(const Mark& mark) {
  std::lock_guard guard(mutex);
  finish_up_to({mark.device, mark.stream}, mark.sequence);
}

void finish_stream(c10::DeviceIndex device, int64_t stream) {
  std::lock_guard guard(mutex);
  finish_up_to({device, stream}, last_sequence);
}

void finish_current_stream(c10::DeviceIndex device) {
  finish_stream(device, current_stream(device));
}

void finish_device(c10::DeviceIndex device) {
  std::lock_guard guard(mutex);
  for (auto& [key, queue] : queues) {
    if (key.first == device) {
      finish_up_to(key, last_sequence);
    }
  }
}

bool query(const Mark& mark) {
  std::lock_guard guard(mutex);
  if (!pending(mark)) {
    return true;
  }
  finish_up_to({mark.device, mark.stream}, mark.sequence);
  return false;
}

void settle_uploads() {
  if (uploads.load(std::memory_order_relaxed) == 0) {
    return;
  }
  std::lock_guard guard(mutex);
  for (auto& [key, queue] : queues) {
    for (size_t i = 0; i < queue.size();) {
      if (queue[i].kind != Entry::Upload) {
        ++i;
        continue;
      }
      const auto entry = std::move(queue[i]);
      queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(i));
      apply(entry);
      i = 0; // applying may have changed the queue
    }
  }
}

} // namespace xpu_emu::late
