#include "device/devices.h"
#include "distributed/xccl.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace xpu_emu {
namespace {

// What a rank tells the others about itself.
struct Seat {
  std::string host, mask;
  int device; // physical index
  std::vector<int> visible;

  std::string text() const {
    std::ostringstream out;
    out << host << '\n' << mask << '\n' << device;
    for (int index : visible) {
      out << ' ' << index;
    }
    return out.str();
  }
  static Seat from(const std::string& text) {
    Seat seat;
    std::istringstream in(text);
    std::getline(in, seat.host);
    std::getline(in, seat.mask);
    in >> seat.device;
    for (int index; in >> index;) {
      seat.visible.push_back(index);
    }
    return seat;
  }
  bool sees(int physical) const { return std::find(visible.begin(), visible.end(), physical) != visible.end(); }
};

std::string host_name() {
  char name[256] = {0};
  gethostname(name, sizeof name - 1);
  return knob("XPU_EMU_HOST", name);
}

std::string mask_in_force() {
  const char* mask = std::getenv("ZE_AFFINITY_MASK");
  return mask ? "ZE_AFFINITY_MASK=" + std::string(mask) : "ZE_AFFINITY_MASK unset";
}

} // namespace

// Communicators are made at the first collective, of the device that it runs on.
void XcclBackend::connect(c10::DeviceIndex device) {
  if (connected_ || getSize() == 1 || knob("XPU_EMU_NARROW_MASK", "raise") == "allow") {
    return;
  }
  connected_ = true;
  TORCH_CHECK_VALUE(
      device < device_count(), "no device xpu:", static_cast<int>(device), " among the ",
      static_cast<int>(device_count()), " visible ones (", mask_in_force(), ")");
  const auto key = [](int rank) { return "seat/" + std::to_string(rank); };
  const Seat own{host_name(), mask_in_force(), visible_devices().at(device), visible_devices()};
  const auto text = own.text();
  store_->set(key(getRank()), std::vector<uint8_t>(text.begin(), text.end()));
  std::vector<Seat> seats;
  for (int rank = 0; rank < getSize(); ++rank) {
    const auto bytes = store_->get(key(rank));
    seats.push_back(Seat::from(std::string(bytes.begin(), bytes.end())));
  }
  // All ranks hold the same table, so that all raise the same error and none is left waiting.
  for (int rank = 0; rank < getSize(); ++rank) {
    for (const auto& other : seats) {
      TORCH_CHECK(
          other.host != seats[rank].host || seats[rank].sees(other.device),
          "oneCCL (emulated): rank ", rank, " of this group (", seats[rank].mask, ", device ", seats[rank].device,
          ") doesn't see device ", other.device, ", which another rank of the group on ", other.host,
          " drives: comm_dev_uuids is not sub-vector of node_dev_uuids, this may happen due to narrow device affinity "
          "mask. Real oneCCL hangs here, or fails in zeMemOpenIpcHandle. Let every process see all devices and pick "
          "its own by index. (XPU_EMU_NARROW_MASK=allow lets it pass.)");
    }
  }
}

} // namespace xpu_emu
