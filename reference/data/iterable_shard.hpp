#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/dataset.hpp"
#include "reference/data/shard_plan.hpp"

namespace accel::detail {

/// Batches of an iterable dataset: of every group of total_batch_size samples, those that the shard plan gives this rank.
/// A short last group is filled from the first one, unless it is dropped or there is one rank only.
/// Source: accelerate/data_loader.py, IterableDatasetShard.
template <IterableDataset Dataset, typename Collate, typename Batch>
class IterableDatasetShard : public BatchStream<Batch> {
 public:
  /// `num_samples` of the options is not used: a group is cut as the first one of a plan.
  IterableDatasetShard(std::shared_ptr<Dataset> dataset, Collate collate, ShardPlanOptions options, int rank)
      : dataset_(std::move(dataset)), collate_(std::move(collate)), options_(options), rank_(rank) {
    options_.num_samples = 0;
    group_size_ = plan_shards(options_).total_batch_size();
  }

  std::optional<Issued<Batch>> next() override {
    const auto group = read_group();
    if (group.empty()) return std::nullopt;
    options_.num_samples = static_cast<std::int64_t>(group.size());
    const auto plan = plan_shards(options_);
    if (plan.num_batches(rank_) == 0) return std::nullopt;  // a short group that is dropped
    const bool is_whole = options_.num_samples == group_size_;
    std::vector<Sample> samples;
    for (const auto position : plan.batch(rank_, 0)) samples.push_back(group[position]);
    if (!is_whole && first_) fill_from_first(plan, samples);
    return Issued<Batch>{collate_(samples), static_cast<std::int64_t>(samples.size()), is_whole ? 0 : options_.num_samples};
  }

  bool skip() override { return !read_group().empty(); }

 private:
  using Sample = SampleOf<Dataset>;

  std::vector<Sample> read_group() {
    if (!cursor_) cursor_.emplace(*dataset_);  // by whoever reads: a dataset may draw when a pass starts
    std::vector<Sample> group;
    while (!ended_ && static_cast<std::int64_t>(group.size()) < group_size_) {
      auto sample = cursor_->next();
      if (sample) {
        group.push_back(std::move(*sample));
      } else {
        ended_ = true;
      }
    }
    const bool may_be_needed = !first_ && options_.num_ranks > 1 && !options_.drop_last;
    if (may_be_needed && !ended_) first_ = group;
    return group;
  }

  // The plan continues a short group by its own start; here it is the start of the stream.
  void fill_from_first(const ShardPlan& plan, std::vector<Sample>& samples) const {
    const auto begin = rank_ * (group_size_ / options_.num_ranks);
    for (std::size_t place = 0; place < samples.size(); ++place) {
      const auto position = begin + static_cast<std::int64_t>(place);
      if (position >= options_.num_samples) samples[place] = (*first_)[position - options_.num_samples];
    }
  }

  std::shared_ptr<Dataset> dataset_;
  std::optional<SampleCursor<Dataset>> cursor_;
  Collate collate_;
  ShardPlanOptions options_;
  int rank_;
  std::int64_t group_size_ = 0;
  std::optional<std::vector<Sample>> first_;
  bool ended_ = false;
};

}  // namespace accel::detail
