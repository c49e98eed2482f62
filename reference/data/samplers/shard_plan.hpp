#pragma once

#include <cstdint>
#include <vector>

#include "reference/config/data_loader_configuration.hpp"

/// Which rank reads which batch: a pure function of sizes, ranks and flags.
///
///     auto plan = plan_shards({.num_samples = 5, .batch_size = 2, .num_ranks = 2});
///     plan.indices(/*rank=*/1);   // {{2, 3}, {1, 2}}
///
/// Numbers are positions in the sampler's order, 0 .. num_samples - 1. With even_batches every rank has the same number
/// of full batches: the order is continued by its own start, cyclically. A plan may begin inside the order
/// (`num_read`): the rest of an epoch that other ranks, of whatever number, have begun. Thread rule: a value. Source:
/// accelerate/data_loader.py, BatchSamplerShard.
namespace accel {

struct ShardPlanOptions {
  std::int64_t num_samples = 0;
  std::int64_t batch_size = 1;  ///< of one rank; with split_batches of all ranks together
  int num_ranks = 1;
  bool split_batches = false;
  bool even_batches = true;
  bool drop_last = false;
  bool even_alone = false;    ///< even_batches fills up for one rank too, which else keeps its short batch
  std::int64_t num_read = 0;  ///< samples of the order that are read already; beyond num_samples: all of them
};

/// The options of a loader's plan: `sizes`, with what its configuration decides. A stream's shards are always even:
/// every rank reads all of it, and fills up.
ShardPlanOptions configured(ShardPlanOptions sizes, const DataLoaderConfiguration& config, bool is_stream);

class ShardPlan {
 public:
  /// Number of batches of a rank; exact, unlike Accelerate's where split_batches leaves a rank without a tail.
  [[nodiscard]] std::int64_t num_batches(int rank) const;
  /// Positions in batch `step` of a rank. 0 <= step < num_batches(rank).
  [[nodiscard]] std::vector<std::int64_t> batch(int rank, std::int64_t step) const;
  /// All batches of a rank.
  [[nodiscard]] std::vector<std::vector<std::int64_t>> indices(int rank) const;
  /// Samples of the last step that are no duplicates, over all ranks; 0: all of them, or dropped tail.
  [[nodiscard]] std::int64_t remainder() const;
  /// The same of a step: 0 for every full one.
  [[nodiscard]] std::int64_t remainder(std::int64_t step) const { return step + 1 == num_steps() ? remainder() : 0; }
  /// Samples issued twice, over all ranks.
  [[nodiscard]] std::int64_t num_duplicates() const;
  [[nodiscard]] std::int64_t num_samples() const { return options_.num_samples; }
  [[nodiscard]] std::int64_t num_read() const { return options_.num_read; }
  /// A short last step is continued by the start of the order.
  [[nodiscard]] bool fills_up() const {
    return !options_.drop_last && options_.even_batches && (options_.num_ranks > 1 || options_.even_alone);
  }
  /// Samples of one step over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const;

 private:
  friend ShardPlan plan_shards(ShardPlanOptions options);
  [[nodiscard]] std::int64_t num_left() const { return options_.num_samples - options_.num_read; }
  [[nodiscard]] std::int64_t num_steps() const;  // of the rank with the most batches

  ShardPlanOptions options_;
};

/// Throws ArgumentError if a number is not positive, or if split_batches cannot cut a batch evenly (batch size 1
/// included, where Accelerate yields nothing).
ShardPlan plan_shards(ShardPlanOptions options);

}  // namespace accel
