// Source: accelerate/data_loader.py, BatchSamplerShard. A closed formula per (rank, step), because a plan is
// evaluated for one rank at a time and for epochs of any length.
#include "reference/data/samplers/shard_plan.hpp"

#include <algorithm>
#include <limits>

#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"

namespace accel {

// Source: accelerate/data_loader.py, IterableDatasetShard: it ignores even_batches and always pads.
ShardPlanOptions configured(ShardPlanOptions sizes, const DataLoaderConfiguration& config, bool is_stream) {
  sizes.split_batches = config.splits();
  sizes.even_batches = config.even_batches || is_stream;
  sizes.even_alone = config.is_elastic();
  return sizes;
}

ShardPlan plan_shards(ShardPlanOptions options) {
  check_argument(options.num_samples >= 0, "num_samples: expected 0 or more, got {}", options.num_samples);
  check_argument(options.batch_size >= 1, "batch_size: expected 1 or more, got {}", options.batch_size);
  check_argument(options.num_ranks >= 1, "num_ranks: expected 1 or more, got {}", options.num_ranks);
  check_argument(options.batch_size <= std::numeric_limits<std::int64_t>::max() / options.num_ranks,
                 "batch_size: {} on {} ranks exceeds the range of int64 for one step; expected at most {}",
                 options.batch_size, options.num_ranks, std::numeric_limits<std::int64_t>::max() / options.num_ranks);
  check_argument(
      !options.split_batches || options.batch_size % options.num_ranks == 0,
      "split_batches: a batch of {} is not divisible by {} ranks; expected a multiple of {}; change batch_size or "
      "set split_batches: false",
      options.batch_size, options.num_ranks, options.num_ranks);
  check_argument(options.num_read >= 0, "num_read: expected 0 or more, got {}", options.num_read);
  options.num_read = std::min(options.num_read, options.num_samples);
  ShardPlan plan;
  plan.options_ = options;
  return plan;
}

std::int64_t ShardPlan::total_batch_size() const {
  return options_.split_batches ? options_.batch_size : options_.batch_size * options_.num_ranks;
}

std::int64_t ShardPlan::num_steps() const {
  if (options_.drop_last) return num_left() / total_batch_size();
  return divide_up(num_left(), total_batch_size());
}

// Only without drop_last and even_batches can ranks differ: the tail then goes to the first ranks.
std::int64_t ShardPlan::num_batches(int rank) const {
  check_argument(rank >= 0 && rank < options_.num_ranks,
                 "rank: {} is out of range for {} ranks; expected 0 or more and less than {}", rank, options_.num_ranks,
                 options_.num_ranks);
  const bool may_lack_the_tail = !options_.drop_last && !options_.even_batches && options_.num_ranks > 1;
  if (!may_lack_the_tail) return num_steps();
  const auto full = num_left() / total_batch_size();
  const auto tail = num_left() % total_batch_size();
  const auto per_rank = total_batch_size() / options_.num_ranks;
  return full + (tail > rank * per_rank ? 1 : 0);
}

std::vector<std::int64_t> ShardPlan::batch(int rank, std::int64_t step) const {
  check_argument(step >= 0 && step < num_batches(rank),
                 "step: {} is out of range for the {} batches of rank {}; expected 0 or more and less than {}", step,
                 num_batches(rank), rank, num_batches(rank));
  const auto n = options_.num_samples;
  const auto per_rank = total_batch_size() / options_.num_ranks;
  const auto begin = options_.num_read + step * total_batch_size() + rank * per_rank;
  const auto end = begin + per_rank;
  if (end <= n) return range(begin, end);
  // A short last step stays short or is padded with the start of the order, cyclically.
  if (!fills_up()) return range(begin, std::min(end, n));
  auto positions = range(begin, end);
  for (auto& position : positions) {
    if (position >= n) position = (position - n) % n;
  }
  return positions;
}

std::vector<std::vector<std::int64_t>> ShardPlan::indices(int rank) const {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::int64_t step = 0; step < num_batches(rank); ++step) batches.push_back(batch(rank, step));
  return batches;
}

std::int64_t ShardPlan::remainder() const { return options_.drop_last ? 0 : num_left() % total_batch_size(); }

// Counts the issued samples and subtracts those left to issue; all batches of a rank but the last are full.
std::int64_t ShardPlan::num_duplicates() const {
  std::int64_t issued = 0;
  for (int rank = 0; rank < options_.num_ranks; ++rank) {
    const auto batches = num_batches(rank);
    if (batches > 0)
      issued += (batches - 1) * (total_batch_size() / options_.num_ranks) +
                static_cast<std::int64_t>(batch(rank, batches - 1).size());
  }
  return std::max<std::int64_t>(issued - num_left(), 0);
}

}  // namespace accel
