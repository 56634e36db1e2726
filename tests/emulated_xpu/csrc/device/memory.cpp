#include "device/memory.h"

#include "device/devices.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>

#include <map>
#include <mutex>

namespace xpu_emu {
namespace {

using c10::CachingDeviceAllocator::DeviceStats;

struct Ledger {
  std::mutex mutex;
  DeviceStats stats;
  double fraction = 1.0;

  // torch's allocator caches; this one doesn't, so that reserved memory equals allocated memory.
  auto byte_counters() {
    return std::array{&stats.allocated_bytes, &stats.reserved_bytes, &stats.active_bytes, &stats.requested_bytes};
  }
  auto block_counters() {
    return std::array{&stats.allocation, &stats.active};
  }
};

Ledger& ledger(int device) {
  static Ledger all[kMaxDevices];
  return all[device];
}

void take(int device, size_t bytes) {
  auto& book = ledger(device);
  std::lock_guard guard(book.mutex);
  const auto used = static_cast<size_t>(book.stats.allocated_bytes[0].current);
  const auto limit = static_cast<size_t>(static_cast<double>(memory_capacity()) * book.fraction);
  if (used + bytes > limit) {
    book.stats.num_ooms += 1;
    TORCH_CHECK_WITH(
        OutOfMemoryError, false, "XPU out of memory. Tried to allocate ", bytes, " bytes. GPU ", device,
        " has a total capacity of ", memory_capacity(), " bytes, of which this process may use ", limit, " and has allocated ",
        used, ".");
  }
  for (auto* counter : book.byte_counters()) {
    (*counter)[0].increase(bytes);
  }
  for (auto* counter : book.block_counters()) {
    (*counter)[0].increase(1);
  }
}

void give_back(int device, size_t bytes) {
  auto& book = ledger(device);
  std::lock_guard guard(book.mutex);
  for (auto* counter : book.byte_counters()) {
    (*counter)[0].decrease(bytes);
  }
  for (auto* counter : book.block_counters()) {
    (*counter)[0].decrease(1);
  }
}

struct Block {
  void* pointer;
  size_t bytes;
  int device;
  c10::Storage owner; // of the memory, where it isn't the block itself
};

void free_block(void* context) {
  auto* block = static_cast<Block*>(context);
  if (block == nullptr) {
    return;
  }
  give_back(block->device, block->bytes);
  if (!block->owner) {
    c10::free_cpu(block->pointer);
  }
  delete block;
}

struct Allocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device();
    const c10::Device tag(kXPU, device);
    if (bytes == 0) {
      return {nullptr, nullptr, &free_block, tag}; // still tagged, or resize_(0) would turn the storage into CPU
    }
    take(device, bytes);
    auto* block = new Block{c10::alloc_cpu(bytes), bytes, device, {}};
    return {block->pointer, block, &free_block, tag};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_block; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    std::lock_guard guard(ledger(device).mutex);
    return ledger(device).stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    each_counter(device, [](auto& stat) { stat.reset_accumulated(); });
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    each_counter(device, [](auto& stat) { stat.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    static const bool unsupported = knob("XPU_EMU_MEM_GET_INFO", "") == "raise";
    TORCH_CHECK(
        !unsupported, "The device (", knob("XPU_EMU_NAME", "emulated"),
        ") doesn't support querying the available free memory."); // as client GPUs without that SYCL aspect do
    std::lock_guard guard(ledger(device).mutex);
    return {memory_capacity() - static_cast<size_t>(ledger(device).stats.allocated_bytes[0].current), memory_capacity()};
  }

 private:
  template <class Function>
  void each_counter(c10::DeviceIndex device, Function function) {
    auto& book = ledger(device);
    std::lock_guard guard(book.mutex);
    for (auto* counter : book.byte_counters()) {
      function((*counter)[0]);
    }
    for (auto* counter : book.block_counters()) {
      function((*counter)[0]);
    }
  }
};

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, size_t> sizes;

  static PinnedBlocks& all() {
    static auto* blocks = new PinnedBlocks(); // outlives every tensor
    return *blocks;
  }
};

void free_pinned(void* pointer) {
  if (pointer == nullptr) {
    return;
  }
  {
    std::lock_guard guard(PinnedBlocks::all().mutex);
    PinnedBlocks::all().sizes.erase(static_cast<char*>(pointer));
  }
  c10::free_cpu(pointer);
}

struct PinnedAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* pointer = bytes ? c10::alloc_cpu(bytes) : nullptr;
    if (pointer) {
      std::lock_guard guard(PinnedBlocks::all().mutex);
      PinnedBlocks::all().sizes[static_cast<char*>(pointer)] = bytes;
    }
    return {pointer, pointer, &free_pinned, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &free_pinned; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

} // namespace

size_t memory_capacity() {
  static const size_t bytes = std::stoull(knob("XPU_EMU_MEM_MB", "16384")) << 20;
  return bytes;
}

c10::DeviceAllocator* device_allocator() {
  static auto* allocator = new Allocator();
  return allocator;
}

at::HostAllocator* pinned_allocator() {
  static auto* allocator = new PinnedAllocator();
  return allocator;
}

bool is_pinned(const void* pointer) {
  auto& blocks = PinnedBlocks::all();
  std::lock_guard guard(blocks.mutex);
  auto after = blocks.sizes.upper_bound(static_cast<const char*>(pointer));
  if (after == blocks.sizes.begin()) {
    return false;
  }
  const auto& [start, bytes] = *std::prev(after);
  return static_cast<const char*>(pointer) < start + bytes;
}

double memory_fraction(c10::DeviceIndex device) {
  std::lock_guard guard(ledger(device).mutex);
  return ledger(device).fraction;
}

void set_memory_fraction(double fraction, c10::DeviceIndex device) {
  std::lock_guard guard(ledger(device).mutex);
  ledger(device).fraction = fraction;
}

c10::DataPtr xpu_pointer_over(const c10::Storage& cpu, c10::DeviceIndex device) {
  const c10::Device tag(kXPU, device);
  void* pointer = const_cast<void*>(cpu.data_ptr().get());
  if (pointer == nullptr) {
    return {nullptr, nullptr, &free_block, tag};
  }
  take(device, cpu.nbytes());
  return {pointer, new Block{pointer, cpu.nbytes(), device, cpu}, &free_block, tag};
}

c10::Storage xpu_storage_over(const c10::Storage& cpu, c10::DeviceIndex device) {
  return {
      c10::Storage::use_byte_size_t(), cpu.nbytes(), xpu_pointer_over(cpu, device), device_allocator(),
      /*resizable=*/true};
}

c10::Storage cpu_storage_over(const c10::Storage& xpu) {
  const auto release = [](void* context) { delete static_cast<c10::Storage*>(context); };
  return {
      c10::Storage::use_byte_size_t(), xpu.nbytes(),
      c10::DataPtr(
          const_cast<void*>(xpu.data_ptr().get()), new c10::Storage(xpu), release,
          c10::Device(c10::DeviceType::CPU)),
      c10::GetCPUAllocator(), /*resizable=*/true};
}

} // namespace xpu_emu
