#pragma once

#include <memory>

#include "backends/gloo/shared_memory/links.hpp"

namespace gloo::transport {
class Device;
}

namespace accel::gloo {

/// A Gloo device for one group, whose ranks are linked by shared memory. Its one context is for this rank and size.
std::shared_ptr<::gloo::transport::Device> make_device(int rank, Links links);

/// Throws CommError if Gloo's classes in the loaded LibTorch are not laid out as third_party/gloo/transport.hpp says:
/// another LibTorch.
void check_layout();

}  // namespace accel::gloo
