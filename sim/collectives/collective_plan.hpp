#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "reference/core/collective.hpp"

/// The messages that a collective sends, round by round: a pure function of its size, its ranks and the library.
///
///     const auto plan = plan_collective({.op = Collective::kAllReduce, .bytes = 1 << 20, .num_ranks = 8},
///                                       Library::kGloo);
///     std::vector<Message> messages;
///     for (const auto& stage : plan.stages)
///       for (int round = 0; round < stage.num_rounds; ++round) stage.messages(round, messages);
///
/// Ranks are those of the group. The algorithms are those of `Algorithm` in collective.hpp.
/// Thread rule: pure.
namespace accel::sim {

/// The library whose algorithms are modelled.
enum class Library { kGloo, kNccl };

/// A message, sent in pieces of which two are in flight at once. 0 pieces: nothing is sent, but the slot in the round
/// stays.
struct Message {
  int from = 0, to = 0;
  std::int64_t bytes = 0;
  int pieces = 1;
  bool is_reduced = false;  ///< the receiver adds it to its own
};

/// The pattern of senders and receivers. Together with the root (and the round, where the pattern changes) it
/// determines the pairs of a round and their order.
enum class Pairs { kRingDown, kRingUp, kChain, kTreeDown, kTreeUp, kToRoot, kFromRoot, kExchange, kDissemination };

struct Stage {
  Pairs pairs;
  int root = 0;
  int num_rounds = 1;
  /// Replaces the vector's contents with the messages of one round.
  std::function<void(int round, std::vector<Message>& messages)> messages;

  /// Rounds of one pattern have the same pairs in the same order.
  [[nodiscard]] int pattern(int round) const {
    return pairs == Pairs::kRingDown || pairs == Pairs::kRingUp || pairs == Pairs::kChain ? 0 : round;
  }
};

struct CollectivePlan {
  std::vector<Stage> stages;
  int repeats = 1;  ///< how often the complete plan runs, one run after the other
};

struct CollectiveCall {
  Collective op{};
  std::int64_t bytes = 0;  ///< of this rank's input; for scatter, of one rank's part
  int element_bytes = 4;
  int num_ranks = 1;
  int root = -1;
};

/// Throws ArgumentError for a root or a number of ranks that does not fit the operation.
CollectivePlan plan_collective(const CollectiveCall& call, Library library, std::int64_t tree_all_reduce_bytes_max = 0);

/// Calls `visit` for each pair of ranks of which the first sends directly to the second in Gloo's algorithm, at any
/// number of bytes. May visit a pair more than once.
void for_each_link(Collective op, int num_ranks, int root, const std::function<void(int from, int to)>& visit);

}  // namespace accel::sim
