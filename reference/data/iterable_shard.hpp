#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/dataset.hpp"
#include "reference/data/samplers/shard_plan.hpp"

namespace accel::detail {

/// Batches of an iterable dataset: from every group of total_batch_size samples, the samples that the shard plan
/// assigns to this rank. A short last group is padded from the first group, unless it is dropped or there is only one
/// rank.
/// Source: accelerate/data_loader.py, IterableDatasetShard.
template <IterableDataset Dataset, typename Collate, typename Batch>
class IterableDatasetShard : public BatchStream<Batch> {
 public:
  /// Skips the first `num_read` samples of the stream. `num_samples` is not used: every group is divided like the first
  /// group of a plan.
  IterableDatasetShard(std::shared_ptr<Dataset> dataset, Collate collate, ShardPlanOptions options, int rank)
      : dataset_(std::move(dataset)),
        collate_(std::move(collate)),
        options_(options),
        rank_(rank),
        num_to_skip_(options.num_read) {
    options_.num_samples = options_.num_read = 0;
    const auto plan = plan_shards(options_);
    group_size_ = plan.total_batch_size();
    fills_up_ = plan.fills_up();
  }

  void start() override {
    if (cursor_) return;
    cursor_.emplace(*dataset_);  // on the reading thread: a dataset may draw when a pass starts
    if (num_to_skip_ > 0 && fills_up_) num_to_skip_ -= keep_first();
    if (!ended_) cursor_->skip(num_to_skip_);
  }

  std::optional<LoadedBatch<Batch>> next() override {
    const auto group = read_group();
    if (group.empty()) return std::nullopt;
    options_.num_samples = static_cast<std::int64_t>(group.size());
    const auto plan = plan_shards(options_);
    if (plan.num_batches(rank_) == 0) return std::nullopt;  // a short group with drop_last
    const bool is_whole = options_.num_samples == group_size_;
    std::vector<Sample> samples;
    for (const auto position : plan.batch(rank_, 0)) samples.push_back(group[position]);
    if (!is_whole && first_) fill_from_first(samples);
    return LoadedBatch<Batch>{
        {.num_rows = static_cast<std::int64_t>(samples.size()), .remainder = is_whole ? 0 : options_.num_samples},
        collate_(samples)};
  }

 private:
  using Sample = SampleOf<Dataset>;

  std::vector<Sample> read(std::int64_t num_samples) {
    std::vector<Sample> samples;
    while (!ended_ && static_cast<std::int64_t>(samples.size()) < num_samples) {
      auto sample = cursor_->next();
      if (sample) {
        samples.push_back(std::move(*sample));
      } else {
        ended_ = true;
      }
    }
    return samples;
  }

  std::vector<Sample> read_group() {
    start();
    auto group = read(group_size_);
    if (!first_ && fills_up_ && !ended_) first_ = group;
    return group;
  }

  // Keeps those skipped samples that will pad the last group. Returns how many were read.
  std::int64_t keep_first() {
    first_ = read(std::min(num_to_skip_, group_size_));
    return static_cast<std::int64_t>(first_->size());
  }

  // The plan pads a short group with the start of the group; the padding must be the start of the stream instead.
  void fill_from_first(std::vector<Sample>& samples) const {
    const auto begin = rank_ * (group_size_ / options_.num_ranks);
    for (std::size_t place = 0; place < samples.size(); ++place) {
      const auto position = begin + static_cast<std::int64_t>(place);
      if (position >= options_.num_samples)
        samples[place] = (*first_)[(position - options_.num_samples) % static_cast<std::int64_t>(first_->size())];
    }
  }

  std::shared_ptr<Dataset> dataset_;
  std::optional<SampleCursor<Dataset>> cursor_;
  Collate collate_;
  ShardPlanOptions options_;
  int rank_;
  std::int64_t group_size_ = 0, num_to_skip_;
  std::optional<std::vector<Sample>> first_;
  bool fills_up_ = false, ended_ = false;
};

}  // namespace accel::detail
