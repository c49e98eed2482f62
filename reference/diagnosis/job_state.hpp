#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/collective.hpp"
#include "reference/diagnosis/collective_call.hpp"

/// What the ranks of a job do at one moment, whether they are simulated or real: the input of a diagnosis.
///
/// Thread rule: data.
namespace accel {

inline constexpr int kNoPeer = -2, kAnyPeer = -1;

/// Where a rank is in the order of its calls: the call's operation, number and line.
struct CallPlace {
  Collective op{};
  std::string group;
  std::int64_t sequence = -1;  ///< from 0 in the group; for a message, per sender and receiver
  int peer = kNoPeer;          ///< for a message: world rank, or kAnyPeer
  SourceLine where = {};
};
/// E.g. "all_reduce #17 of group world (train.cpp:42)".
std::string describe(const CallPlace& place);

enum class Activity : std::uint8_t {
  kRuns,
  kWaitsForTurn,
  kWaits,  ///< in calls
  kHangs,  ///< by an injected fault
  kHasLeft,
  kIsRemote,  ///< on another machine, whose ranks are not known here
};

struct RankState {
  Activity activity = Activity::kRuns;
  std::optional<CallPlace> last_call = {};
  std::vector<CallPlace> waits = {};  ///< one per thread that waits
  std::string detail = {};  ///< what else is known of a rank that runs or has left: "it was killed by signal 9"
};

/// A collective that ranks have called and not all have joined, or one end of a message without the other.
struct OpenCall {
  std::string group;
  std::vector<int> members = {};  ///< world ranks, by group rank
  std::uint64_t sequence = 0;
  bool is_message = false;
  int peer = -1;                                ///< of a message: the world rank that has to send or receive; -1: any
  std::vector<std::optional<Call>> calls = {};  ///< by group rank; absent: has not arrived. A message has one
  std::vector<int> waiters = {};                ///< world ranks
};

/// Calls of one collective that agree but come from different lines of the program.
struct LinesApart {
  std::uint64_t sequence = 0;
  std::vector<std::optional<Call>> calls = {};  ///< by group rank
};

struct JobState {
  std::vector<RankState> ranks = {};
  std::vector<OpenCall> open_calls = {};               ///< in the order of their first waiter
  std::map<std::string, LinesApart> lines_apart = {};  ///< by group: the first collective that lines differ in
};

}  // namespace accel
