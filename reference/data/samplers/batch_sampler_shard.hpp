#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "reference/data/samplers/batch_sampler.hpp"

namespace accel {

/// The steps of one rank from a user's batches: one of every `num_ranks` batches or, with split_batches, a slice of
/// each.
///
///     BatchSamplerShard shard(batches, {.num_ranks = 4}, /*rank=*/1);
///
/// With even_batches, a short last batch and missing batches of the last step are padded from the first ones. Batches
/// of varying length (no batch_size) are not divided.
/// Thread rule: the rank's thread.
/// Source: accelerate/data_loader.py, BatchSamplerShard.
class BatchSamplerShard : public StepSource {
 public:
  struct Options {
    int num_ranks = 1;
    bool split_batches = false;
    bool even_batches = true;
  };
  /// Throws ArgumentError if split_batches cannot divide the batches evenly.
  static void check(const BatchSampler& batches, Options options);
  /// Throws ArgumentError as `check` does.
  BatchSamplerShard(std::shared_ptr<BatchSampler> batches, Options options, int rank);

  /// Also nullopt if the number depends on the size of the last batch (split_batches without even_batches).
  [[nodiscard]] std::optional<std::int64_t> size() const override;
  /// Units are batches.
  [[nodiscard]] std::int64_t units_per_step() const override { return options_.split_batches ? 1 : options_.num_ranks; }
  void set_epoch(std::int64_t epoch) override { batches_->set_epoch(epoch); }
  [[nodiscard]] Value state_dict() const override { return batches_->state_dict(); }
  void load_state_dict(const Value& state) override { batches_->load_state_dict(state); }
  void begin_pass(std::int64_t num_read = 0, bool draws_at_once = false) override;
  /// Throws ArgumentError for batches that contradict the sampler: an empty batch, one that is longer than batch_size,
  /// or a shorter one that is not the last. Accelerate loses samples in these cases.
  std::optional<Step> next() override;
  [[nodiscard]] LastStep last_step() const override { return last_step_; }

 private:
  using Batch = std::vector<std::int64_t>;
  void skip_batches(std::int64_t num_batches);
  std::optional<Batch> read();
  [[nodiscard]] bool is_short(const Batch& batch) const {
    return batch_size_ && static_cast<std::int64_t>(batch.size()) < *batch_size_;
  }
  std::optional<Step> next_full_batch();
  std::optional<Step> next_slice();
  void fill_up(std::vector<Batch>& group) const;
  void end_with(int num_ranks_in_step);

  std::shared_ptr<BatchSampler> batches_;
  Options options_;
  int rank_;
  std::optional<std::int64_t> batch_size_;
  std::vector<Batch> first_group_;  // pads the last step
  std::int64_t num_read_ = 0, num_to_skip_ = 0;
  bool saw_short_ = false, ended_ = false;
  LastStep last_step_ = LastStep::kOfAllRanks;
};

}  // namespace accel
