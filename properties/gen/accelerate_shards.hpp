#pragma once

#include <cstdint>
#include <vector>

namespace accel::testing {

struct ShardCase {
  std::int64_t num_samples, batch_size;
  int num_ranks, rank;
  bool split_batches, even_batches, drop_last;
};

/// Returns the batches of one rank as Accelerate's BatchSamplerShard yields them. A step-by-step transcription that
/// serves as the model for the closed form of the shard plan. Source: accelerate/data_loader.py,
/// BatchSamplerShard._iter_with_split and _iter_with_no_split.
std::vector<std::vector<std::int64_t>> accelerate_shards(const ShardCase& shard);

}  // namespace accel::testing
