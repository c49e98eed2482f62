#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reference/data/sampler.hpp"
#include "reference/data/shard_plan.hpp"

namespace accel {

/// The batches of indices that one rank reads, in order: a sampler's order cut by a shard plan.
///
///     BatchSamplerShard shard(sampler, {.batch_size = 32, .num_ranks = 4}, /*rank=*/1);
///     shard.begin_pass();
///     while (auto batch = shard.next()) ...
///
/// With one rank it is torch's BatchSampler. Thread rule: the rank's thread.
/// Source: accelerate/data_loader.py, BatchSamplerShard; torch/utils/data/sampler.py, BatchSampler.
class BatchSamplerShard {
 public:
  /// `options.num_samples` is taken from the sampler. Throws ArgumentError as plan_shards does.
  BatchSamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank);

  /// Number of batches of this rank.
  [[nodiscard]] std::int64_t size() const { return plan_.num_batches(rank_); }
  [[nodiscard]] const ShardPlan& plan() const { return plan_; }
  [[nodiscard]] Sampler& sampler() const { return *sampler_; }

  void begin_pass();
  /// The next batch; nothing once the pass is exhausted, which also ends the sampler's pass.
  std::optional<std::vector<std::int64_t>> next();

 private:
  std::shared_ptr<Sampler> sampler_;
  ShardPlan plan_;
  int rank_;
  std::vector<std::int64_t> order_;
  std::int64_t step_ = 0;
  bool started_ = false, exhausted_ = false;
};

}  // namespace accel
