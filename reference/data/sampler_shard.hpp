#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reference/data/batch_sampler.hpp"
#include "reference/data/sampler.hpp"
#include "reference/data/shard_plan.hpp"

namespace accel {

/// The steps of one rank: a sampler's order cut by a shard plan, so that no rank looks at another's batches.
///
///     SamplerShard shard(sampler, {.batch_size = 32, .num_ranks = 4}, /*rank=*/1);
///     shard.begin_pass();
///     while (auto step = shard.next()) ...
///
/// The same steps as BatchSamplerShard over the sampler's batches. Thread rule: the rank's thread.
/// Source: accelerate/data_loader.py, BatchSamplerShard; torch/utils/data/sampler.py, BatchSampler.
class SamplerShard : public StepSource {
 public:
  /// `options.num_samples` is taken from the sampler. Throws ArgumentError as plan_shards does.
  SamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank);

  [[nodiscard]] std::optional<std::int64_t> size() const override { return plan_.num_batches(rank_); }
  [[nodiscard]] const ShardPlan& plan() const { return plan_; }

  void set_epoch(std::int64_t epoch) override { sampler_->set_epoch(epoch); }
  void begin_pass() override;
  /// Nothing once the pass is exhausted, which also ends the sampler's pass.
  /// Throws ArgumentError if the sampler gives another number of indices than its size().
  std::optional<Step> next() override;

 private:
  void read_order(std::int64_t end);
  void end_pass();

  std::shared_ptr<Sampler> sampler_;
  ShardPlan plan_;
  int rank_;
  std::vector<std::int64_t> order_;
  std::int64_t step_ = 0;
  bool started_ = false, exhausted_ = false;
};

}  // namespace accel
