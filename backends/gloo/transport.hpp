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

/// How a group's ranks reach each other: kAuto is shared memory where all are on one host, else TCP.
enum class Transport { kAuto, kTcp, kSharedMemory };

/// ACCEL_GLOO_TRANSPORT=auto|tcp|shm; kAuto if unset. Throws ConfigError for another word.
Transport transport_from_environment();

/// The device of a group whose ranks all share memory with this one; null where they use TCP. Every rank of the group
/// calls it, and all choose alike: through the store they agree whether all are in one network namespace of one kernel,
/// where their sockets and memory can be handed over. Throws ConfigError, on every rank, if one asks for shared memory
/// and not all can have it.
std::shared_ptr<::gloo::transport::Device> agree_on_shared_memory(c10d::Store& store, int rank, int size,
                                                                  Transport wanted, std::chrono::milliseconds timeout);

}  // namespace accel::gloo
