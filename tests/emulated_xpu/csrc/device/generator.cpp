#include "device/generator.h"

#include "device/devices.h"

#include <ATen/EmptyTensor.h>

#include <cstring>

namespace xpu_emu {
namespace {

struct XPUGenerator final : c10::GeneratorImpl {
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;

  explicit XPUGenerator(c10::DeviceIndex device)
      : c10::GeneratorImpl(c10::Device(kXPU, device), c10::DispatchKeySet(c10::DispatchKey::XPU)) {}

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }
  void set_state(const c10::TensorImpl& state) override {
    TORCH_CHECK(state.numel() * state.itemsize() == 16, "RNG state is wrong size");
    const auto* words = static_cast<const uint64_t*>(state.data());
    std::memcpy(&seed_, words, 8);
    std::memcpy(&offset_, words + 1, 8);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    auto state = at::detail::empty_cpu({16}, at::kByte);
    auto* words = static_cast<uint64_t*>(state.mutable_data_ptr());
    std::memcpy(words, &seed_, 8);
    std::memcpy(words + 1, &offset_, 8);
    return state.getIntrusivePtr();
  }
  c10::GeneratorImpl* clone_impl() const override {
    auto* copy = new XPUGenerator(device_.index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t draw() { // SplitMix64 (Steele, Lea, Flood 2014) of seed and offset
    uint64_t z = seed_ + 0x9E3779B97F4A7C15ull * (offset_ + 1);
    offset_ += 4;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
};

} // namespace

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (c10::DeviceIndex index = 0; index < device_count(); ++index) {
      all->push_back(at::make_generator<XPUGenerator>(index));
    }
    return all;
  }();
  return generators->at(device < 0 ? current_device() : device);
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<XPUGenerator>(device < 0 ? current_device() : device);
}

uint64_t draw_seed(const at::Generator& generator) {
  TORCH_CHECK(
      generator.device().type() == kXPU, "Expected a 'xpu' device type for generator but found '",
      c10::DeviceTypeName(generator.device().type(), true), "'");
  auto* impl = static_cast<XPUGenerator*>(generator.unsafeGetGeneratorImpl());
  std::lock_guard guard(impl->mutex_);
  return impl->draw();
}

} // namespace xpu_emu
