#include "reference/core/device.hpp"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace accel {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

void wait_for(c10::Device device) {
  if (!device.is_cpu()) current_stream(device).synchronize();
}

SideStream::SideStream(c10::Device device)
    : stream_(c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device)) {}

at::Tensor SideStream::copy(const at::Tensor& tensor) const {
  auto result = [&] {
    const c10::StreamGuard beside(stream_);
    return tensor.to(stream_.device(), /*non_blocking=*/true);
  }();
  record_on_current_stream(result);
  return result;
}

void SideStream::join() const {
  c10::Event copied(stream_.device_type());
  copied.record(stream_);
  copied.block(current_stream(stream_.device()));
}

void record_on_current_stream(const at::Tensor& tensor) { tensor.record_stream(current_stream(tensor.device())); }

}  // namespace accel
