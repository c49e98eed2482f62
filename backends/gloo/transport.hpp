#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

namespace gloo::transport {
class Device;
}
namespace c10d {
class Store;
}

namespace accel::gloo {

/// How the ranks of a group exchange bytes. kAuto uses shared memory if all ranks are on one host, else TCP.
enum class Transport { kAuto, kTcp, kSharedMemory };

/// Reads ACCEL_GLOO_TRANSPORT=auto|tcp|shm; kAuto if unset. Throws ConfigError for another word.
Transport transport_from_environment();

/// Returns a shared memory device for the group, or null if the group uses TCP. Collective. The ranks agree through the
/// store: they share memory if all are in one network namespace of one kernel, where sockets and memory can be passed
/// between processes. Throws ConfigError, on every rank, if one requires shared memory and not all can share it.
std::shared_ptr<::gloo::transport::Device> agree_on_shared_memory(c10d::Store& store, int rank, int size,
                                                                  Transport wanted, std::chrono::milliseconds timeout);

}  // namespace accel::gloo
