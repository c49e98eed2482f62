#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reference/data/samplers/batch_sampler.hpp"
#include "reference/data/samplers/sampler.hpp"
#include "reference/data/samplers/shard_plan.hpp"

namespace accel {

/// The steps of one rank: a sampler's order divided by a shard plan, without materializing the batches of other ranks.
///
///     SamplerShard shard(sampler, {.batch_size = 32, .num_ranks = 4}, /*rank=*/1);
///     shard.begin_pass();
///     while (auto step = shard.next()) ...
///
/// Yields the same steps as BatchSamplerShard over the sampler's batches. Thread rule: the rank's thread.
/// Source: accelerate/data_loader.py, BatchSamplerShard; torch/utils/data/sampler.py, BatchSampler.
class SamplerShard : public StepSource {
 public:
  /// `options.num_samples` is taken from the sampler. Throws ArgumentError as plan_shards does.
  SamplerShard(std::shared_ptr<Sampler> sampler, ShardPlanOptions options, int rank);

  [[nodiscard]] std::optional<std::int64_t> size() const override { return plan_shards(options_).num_batches(rank_); }
  /// Units are samples.
  [[nodiscard]] std::int64_t units_per_step() const override { return plan_.total_batch_size(); }

  void set_epoch(std::int64_t epoch) override { sampler_->set_epoch(epoch); }
  [[nodiscard]] Value state_dict() const override { return sampler_->state_dict(); }
  void load_state_dict(const Value& state) override { sampler_->load_state_dict(state); }
  void begin_pass(std::int64_t num_read = 0, bool draws_at_once = false) override;
  /// Returns nullopt once the pass is exhausted, which also ends the sampler's pass.
  /// Throws ArgumentError if the sampler yields another number of indices than its size().
  std::optional<Step> next() override;
  [[nodiscard]] LastStep last_step() const override;

 private:
  void start();
  void read_order(std::int64_t end);
  void end_pass();
  [[nodiscard]] std::int64_t index_at(std::int64_t position) const;
  [[nodiscard]] std::int64_t num_drawn() const { return begin_ + static_cast<std::int64_t>(order_->size()); }

  std::shared_ptr<Sampler> sampler_;
  ShardPlanOptions options_;
  int rank_;
  ShardPlan plan_;                                          // of the current pass
  std::shared_ptr<const std::vector<std::int64_t>> first_;  // the start of the order, which pads its end
  std::shared_ptr<const std::vector<std::int64_t>> order_;  // from position begin_ on; earlier indices are released
  std::int64_t begin_ = 0, step_ = 0;
  bool started_ = false, exhausted_ = false;
};

}  // namespace accel
