#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/core/collective.hpp"
#include "reference/core/thread_safety.hpp"
#include "reference/diagnosis/job_state.hpp"
#include "reference/rank_local/call_site.hpp"

namespace accel::sim {

struct EngineGroup;
class Meeting;

/// The last collective or message that a rank called: a CallPlace that allocates nothing.
struct LastCall {
  std::optional<Collective> op;  // absent before the first call
  const EngineGroup* group = nullptr;
  std::int64_t sequence = -1;
  int peer = kNoPeer;  // for a message: world rank, or kAnyPeer
  SourceLine where = {};
};
/// Absent before the first call.
std::optional<CallPlace> place_of(const LastCall& call);

/// A meeting that a rank, or one of its threads, waits for.
struct RankWait {
  int rank = 0;
  Meeting* meeting = nullptr;
  LastCall call = {};
};

/// What other threads can read about each rank: its last call, what it waits for, whether it has left.
///
/// Thread rule: call `set_` methods from the rank's thread, the others from any thread.
class RankStates {
 public:
  explicit RankStates(int num_ranks) : ranks_(num_ranks) {}
  [[nodiscard]] int num_ranks() const { return static_cast<int>(ranks_.size()); }

  void set_last_call(int rank, const LastCall& call);
  /// Returns the rank's calls since the last time, in order. Calls are kept from the first time on.
  [[nodiscard]] std::vector<LastCall> take_calls(int rank);
  /// The last call, without a lock: for the rank's thread, also in a signal handler.
  [[nodiscard]] const LastCall& own_last_call(int rank) const { return ranks_[rank].own_last_call; }
  /// Sets what the rank waits for, one meeting per thread that waits; none: the rank runs.
  void set_waits(int rank, std::span<const RankWait> waits);
  void set_left(int rank);

  [[nodiscard]] RankState state(int rank);
  /// Returns what the ranks wait for. A meeting stays alive while a rank waits for it.
  [[nodiscard]] std::vector<RankWait> waits();

 private:
  struct alignas(64) Rank {  // padded, so that ranks do not share cache lines
    LastCall own_last_call;  // used by the rank's thread only
    Mutex mutex;
    LastCall last_call ACCEL_GUARDED_BY(mutex);
    std::optional<std::vector<LastCall>> kept_calls ACCEL_GUARDED_BY(mutex);
    std::vector<RankWait> waits ACCEL_GUARDED_BY(mutex);
    bool has_left ACCEL_GUARDED_BY(mutex) = false;
  };
  std::vector<Rank> ranks_;
};

}  // namespace accel::sim
