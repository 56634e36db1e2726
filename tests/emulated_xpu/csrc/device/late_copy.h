// `XPU_EMU_LATE_COPY=1`: copies between host and device that were asked for with non_blocking=True complete as late as
// the stream order allows, so that code which doesn't synchronise reads bytes that are certainly wrong.
//
// No thread and no clock is involved: a copy waits in its stream's queue until somebody synchronises. To the host, the
// destination of a device-to-host copy holds NaN (or inverted bits) until then; what it gets in the end is the source as
// it was when the copy was enqueued. A host-to-device copy from pinned memory reads its source when the device needs it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

namespace xpu_emu::late {

bool enabled();

void download(const at::Tensor& host, const at::Tensor& device); // `device`: a CPU alias of the device's memory
void upload(const at::Tensor& device, const at::Tensor& host);

// A place in a stream's queue; what an event holds.
struct Mark {
  c10::DeviceIndex device = 0;
  int64_t stream = 0;
  uint64_t sequence = 0;
};
Mark mark(const c10::Stream& stream);
void wait_in_stream(const c10::Stream& stream, const Mark& mark); // the stream waits, the host doesn't

// The host waits.
void finish(const Mark& mark);
void finish_stream(c10::DeviceIndex device, int64_t stream);
void finish_current_stream(c10::DeviceIndex device);
void finish_device(c10::DeviceIndex device);
// Whether all was done by now. What wasn't is done as soon as it was asked about, so that loops that poll come to an end.
bool query(const Mark& mark);

// A kernel is about to run: what it reads must have arrived.
void settle_uploads();

} // namespace xpu_emu::late
