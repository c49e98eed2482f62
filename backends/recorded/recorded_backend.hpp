#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "backends/watch/group_recorder.hpp"
#include "reference/comm/collective_backend.hpp"

namespace accel::recorder {

/// Notes what a GPU waits for. Thread rule: any thread of the rank.
class GpuWaits {
 public:
  GpuWaits() = default;
  virtual ~GpuWaits() = default;
  GpuWaits(const GpuWaits&) = delete;
  GpuWaits& operator=(const GpuWaits&) = delete;
  /// From here on the current stream waits for the end of the call.
  virtual void begin(const RankRecorder::Begun& call) = 0;
};

/// Returns a backend that records the calls of a group, compares them with those of the other ranks, and forwards them.
/// A call that differs throws DiagnosedError on every rank of the host; so does a wait for another rank, unless the
/// backend's works are waited for by a GPU: `gpu_waits`, else null.
c10::intrusive_ptr<c10d::Backend> recorded(c10::intrusive_ptr<c10d::Backend> backend, GroupRecorder recorder,
                                           std::shared_ptr<GpuWaits> gpu_waits = nullptr);

/// What the simulator's Call holds of these arguments.
CallFacts facts_of(const CollectiveArgs& args);
/// What the rank of an all-to-all sends and expects; nothing for other collectives.
std::optional<Parts> parts_of(const CollectiveArgs& args, int num_ranks);

}  // namespace accel::recorder
