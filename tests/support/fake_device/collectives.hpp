#pragma once

#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <vector>

#include "reference/state/rank_context.hpp"
#include "tests/support/fake_device/device.hpp"

/// Collectives of device tensors, in stream order: each group has a stream of its own, as in ProcessGroupNCCL. A
/// collective begins after the work that its rank's current stream has been given, and `wait()` makes the current
/// stream wait for it, not the host. Its tensors stay alive until `wait()`, but are not recorded on the group's stream.
/// Bits, diagnoses and virtual time are the simulator's.
///
///     run_ranks(Backend::kSim, 2, [](RankContext& rank) {
///       const fake_device::DeviceScope on_device(rank);
///       Accelerator accelerator;  // its device is rank.device
///     });
namespace accel::testing::fake_device {

/// Gives a simulated rank the device of its number until the scope ends. Thread rule: the rank's thread.
class DeviceScope {
 public:
  explicit DeviceScope(RankContext& rank);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  RankContext& rank_;
  std::function<Group(const std::vector<int>&)> new_group_;
  c10::DeviceGuard current_;
  std::optional<c10::Stream> stream_;  // the thread's, before it left the default stream as ranks over NCCL do
};

/// The counts of the process while every rank runs `body`. Collective.
[[nodiscard]] Counts counts_during(const RankContext& rank, const std::function<void()>& body);

}  // namespace accel::testing::fake_device
