#pragma once

#include <memory>

#include "backends/gloo/shared_memory/links.hpp"

namespace gloo::transport {
class Device;
}

namespace accel::gloo {

/// Creates a Gloo device for one group whose ranks are linked by shared memory. It supports one context, for this rank.
std::shared_ptr<::gloo::transport::Device> make_device(int rank, Links links);

/// Throws CommError if the layout of Gloo's classes in the loaded LibTorch differs from third_party/gloo/transport.hpp,
/// which happens with another version of LibTorch.
void check_layout();

}  // namespace accel::gloo
