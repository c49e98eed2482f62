#pragma once

#include <cstdint>
#include <vector>

#include "reference/config/plugins/data_loader_configuration.hpp"

/// Assignment of batches to ranks, as a pure function of sizes, ranks and flags.
///
///     auto plan = plan_shards({.num_samples = 5, .batch_size = 2, .num_ranks = 2});
///     plan.indices(/*rank=*/1);   // {{2, 3}, {1, 2}}
///
/// Numbers are positions in the sampler's order, 0 .. num_samples - 1. With even_batches every rank has the same number
/// of full batches; the order is padded with its own start, cyclically. A plan may start inside the order (`num_read`),
/// to continue an epoch that was started with any world size. Thread rule: a value.
/// Source: accelerate/data_loader.py, BatchSamplerShard.
namespace accel {

struct ShardPlanOptions {
  std::int64_t num_samples = 0;
  std::int64_t batch_size = 1;  ///< per rank; with split_batches, over all ranks
  int num_ranks = 1;
  bool split_batches = false;
  bool even_batches = true;
  bool drop_last = false;
  bool even_alone = false;    ///< even_batches also pads a single rank, which otherwise keeps its short batch
  std::int64_t num_read = 0;  ///< number of samples of the order that were read before; clamped to num_samples
};

/// Returns `sizes` with the flags of a loader's configuration. The shards of a stream are always even: every rank reads
/// the complete stream and pads.
ShardPlanOptions configured(ShardPlanOptions sizes, const DataLoaderConfiguration& config, bool is_stream);

class ShardPlan {
 public:
  /// Number of batches of a rank. Exact, unlike Accelerate's if split_batches leaves a rank without a tail.
  [[nodiscard]] std::int64_t num_batches(int rank) const;
  /// Returns the positions in batch `step` of a rank. Requires 0 <= step < num_batches(rank).
  [[nodiscard]] std::vector<std::int64_t> batch(int rank, std::int64_t step) const;
  /// Returns all batches of a rank.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> indices(int rank) const;
  /// Number of samples of the last step over all ranks that are not duplicates; 0: a full step or a dropped tail.
  [[nodiscard]] std::int64_t remainder() const;
  /// The same for any step; 0 for every full step.
  [[nodiscard]] std::int64_t remainder(std::int64_t step) const { return step + 1 == num_steps() ? remainder() : 0; }
  /// Number of samples that are issued twice, over all ranks.
  [[nodiscard]] std::int64_t num_duplicates() const;
  [[nodiscard]] std::int64_t num_samples() const { return options_.num_samples; }
  [[nodiscard]] std::int64_t num_read() const { return options_.num_read; }
  /// True if a short last step is padded with the start of the order.
  [[nodiscard]] bool fills_up() const {
    return !options_.drop_last && options_.even_batches && (options_.num_ranks > 1 || options_.even_alone);
  }
  /// Number of samples of one step over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const;

 private:
  friend ShardPlan plan_shards(ShardPlanOptions options);
  [[nodiscard]] std::int64_t num_left() const { return options_.num_samples - options_.num_read; }
  [[nodiscard]] std::int64_t num_steps() const;  // on the rank with the most batches

  ShardPlanOptions options_;
};

/// Creates a plan. Throws ArgumentError if a number is out of range, or if split_batches cannot divide a batch evenly
/// (including batch size 1, for which Accelerate yields nothing).
ShardPlan plan_shards(ShardPlanOptions options);

}  // namespace accel
