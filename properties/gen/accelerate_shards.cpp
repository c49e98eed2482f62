// A transcription of accelerate/data_loader.py, BatchSamplerShard, loop by loop. It is slow and keeps Python's
// variable names on purpose: it is the model for the closed form in shard_plan.cpp, so it must be comparable line
// by line.
#include "properties/gen/accelerate_shards.hpp"

#include <algorithm>

namespace accel::testing {
namespace {

using Batch = std::vector<std::int64_t>;

std::vector<Batch> inner_batches(const ShardCase& shard) {
  std::vector<Batch> batches;
  for (std::int64_t sample = 0; sample < shard.num_samples; ++sample) {
    if (sample % shard.batch_size == 0) batches.emplace_back();
    batches.back().push_back(sample);
  }
  if (shard.drop_last && !batches.empty() && static_cast<std::int64_t>(batches.back().size()) < shard.batch_size)
    batches.pop_back();
  return batches;
}

void extend(Batch& batch, const Batch& more) { batch.insert(batch.end(), more.begin(), more.end()); }

// BatchSamplerShard._iter_with_split: every rank takes its slice of each batch.
std::vector<Batch> with_split(const ShardCase& shard, const std::vector<Batch>& batches) {
  const auto length = shard.batch_size / shard.num_ranks;
  const auto begin = length * shard.rank, end = length * (shard.rank + 1);
  std::vector<Batch> result;
  const auto slice = [&](const Batch& batch) {
    const auto size = static_cast<std::int64_t>(batch.size());
    return Batch(batch.begin() + std::min(begin, size), batch.begin() + std::min(end, size));
  };
  for (const auto& batch : batches) {
    if (static_cast<std::int64_t>(batch.size()) == shard.batch_size) result.push_back(slice(batch));
  }
  if (shard.drop_last || batches.empty() || static_cast<std::int64_t>(batches.back().size()) == shard.batch_size)
    return result;
  auto tail = batches.back();
  // Python compares with `len(batch) > batch_length * process_index`: ranks beyond the tail get no batch.
  if (!shard.even_batches) {
    if (static_cast<std::int64_t>(tail.size()) > begin) result.push_back(slice(tail));
    return result;
  }
  // The tail is filled from the first batch, which is doubled until it is long enough.
  auto initial = batches.front();
  while (static_cast<std::int64_t>(initial.size()) < shard.batch_size) extend(initial, Batch(initial));
  extend(tail, initial);
  result.push_back(slice(tail));
  return result;
}

// BatchSamplerShard._iter_with_no_split: ranks take batches in turn.
std::vector<Batch> without_split(const ShardCase& shard, const std::vector<Batch>& batches) {
  std::vector<Batch> result;
  Batch initial, to_yield, last;
  std::int64_t index = 0;
  bool any = false;
  for (; index < static_cast<std::int64_t>(batches.size()); ++index) {
    last = batches[index];
    any = true;
    // The samples of the first round, which later fill the last round.
    if (!shard.drop_last && index < shard.num_ranks) extend(initial, last);
    // Batches are yielded only when the round is complete and its last batch is full.
    if (index % shard.num_ranks == shard.rank) to_yield = last;
    if (index % shard.num_ranks == shard.num_ranks - 1 && static_cast<std::int64_t>(last.size()) == shard.batch_size) {
      result.push_back(to_yield);
      to_yield.clear();
    }
  }
  if (shard.drop_last || !any) return result;
  auto last_index = static_cast<std::int64_t>(batches.size()) - 1;
  if (!shard.even_batches) {
    if (!to_yield.empty()) result.push_back(to_yield);
    return result;
  }
  if (static_cast<std::int64_t>(to_yield.size()) == shard.batch_size) result.push_back(to_yield);
  while (static_cast<std::int64_t>(initial.size()) < shard.num_ranks * shard.batch_size)
    extend(initial, Batch(initial));
  // Python's comment: "If the batch seen was of the proper size, it starts from nothing".
  if (static_cast<std::int64_t>(last.size()) == shard.batch_size) {
    last.clear();
    ++last_index;
  }
  // Completes the round: each rank that lacks a batch gets one from the start of the epoch.
  std::int64_t cycle = 0;
  while (last_index % shard.num_ranks != 0 || !last.empty()) {
    const auto end = cycle + shard.batch_size - static_cast<std::int64_t>(last.size());
    last.insert(last.end(), initial.begin() + cycle, initial.begin() + end);
    if (last_index % shard.num_ranks == shard.rank) result.push_back(last);
    cycle = end;
    last.clear();
    ++last_index;
  }
  return result;
}

}  // namespace

std::vector<Batch> accelerate_shards(const ShardCase& shard) {
  const auto batches = inner_batches(shard);
  if (shard.num_ranks == 1) return batches;
  return shard.split_batches ? with_split(shard, batches) : without_split(shard, batches);
}

}  // namespace accel::testing
