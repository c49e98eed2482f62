#pragma once

#include "sim/predict/hardware.hpp"
#include "sim/predict/training_run.hpp"

/// Times of NCCL's collectives between GPUs of NVLink domains that are joined by network cards.
///
///     const CollectiveTimes times(run.system, gpu, hardware);
///     times.gather(bytes, {.stride = 8, .size = 16});   // ranks 0, 8, 16, ...
///
/// All groups of one kind communicate at once, and share the cards of their nodes. No time rises with a faster
/// constant. Thread rule: values.
namespace accel::predict {

/// Ranks `stride` apart. Consecutive ranks are on one node.
struct RankGroup {
  double stride = 1, size = 1;
};

/// Tokens that each rank sends to the ranks of their experts.
struct TokenExchange {
  double bytes = 0;   ///< of all copies
  double copies = 1;  ///< of each token
  bool sends_once_per_node = false;
  double most_nodes = 0;  ///< that the copies of a token are sent to; 0: no limit
};

class CollectiveTimes {
 public:
  CollectiveTimes(const SystemShape& system, const Gpu& gpu, const Hardware& hardware);

  /// An all-gather or reduce-scatter: `bytes` of all ranks together.
  [[nodiscard]] double gather(double bytes, const RankGroup& group) const;
  /// An all-gather in `calls` calls. `through_one_card`: as a single ring.
  [[nodiscard]] double gather_in_calls(double bytes, const RankGroup& group, double calls, bool through_one_card) const;
  [[nodiscard]] double all_reduce(double bytes, const RankGroup& group) const;
  [[nodiscard]] double all_to_all(const TokenExchange& tokens, const RankGroup& group) const;
  /// Each rank passes `bytes` to the next one, until all have seen those of all. The slowest link sets the pace.
  [[nodiscard]] double ring_of_messages(double bytes, const RankGroup& group) const;
  /// A message between ranks that are `stride` apart.
  [[nodiscard]] double message(double bytes, double stride) const;

  /// Whether NVLink joins the ranks.
  [[nodiscard]] bool is_in_one_domain(const RankGroup& group) const { return num_domains(group) <= 1; }
  [[nodiscard]] double network_bytes_per_second_per_node() const { return node_rate_; }
  [[nodiscard]] bool assumes_network() const { return assumes_network_; }

 private:
  [[nodiscard]] double members_per_domain(const RankGroup& group) const;
  [[nodiscard]] double num_domains(const RankGroup& group) const;
  [[nodiscard]] double ring_rate(const RankGroup& group) const;
  [[nodiscard]] double ring_latency(const RankGroup& group) const;
  // Of one GPU, to ranks that are `span` GPUs away.
  [[nodiscard]] double card_share(double span) const;

  double gpus_per_node_, domain_, node_rate_, bus_rate_;
  double nodes_per_switch_, oversubscription_;
  bool assumes_network_;
  double all_to_all_share_;
  Latencies latencies_;
};

}  // namespace accel::predict
