#pragma once

#include <cstdint>

#include "reference/data/loader_options.hpp"
#include "reference/data/samplers/shard_plan.hpp"

/// Which ranks read a loader's samples, and how they divide them: a pure function of the options.
/// Thread rule: values.
namespace accel {

struct ReadingPlan {
  bool is_dispatched = false;    ///< rank 0 reads, and sends each rank its part
  bool reads_own_parts = false;  ///< every rank reads other parts of a stream
  int num_ranks = 1;             ///< that get different samples
  ShardPlanOptions cut = {};     ///< of the reader's order or stream; for one rank where no other reads the same

  /// Threads that read ahead on a rank if `num_workers` are asked for: only one for a stream, unless each can read
  /// other parts.
  [[nodiscard]] int num_readers(const DataSource& source, std::int64_t num_workers, int rank) const;
};

/// Of a plain loader. Throws ArgumentError with all problems of the options.
ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options);
/// Of a loader that is sharded for one rank. Throws ArgumentError if the batches cannot be cut.
ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard);

}  // namespace accel
