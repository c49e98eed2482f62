#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "reference/data/loader_options.hpp"
#include "reference/data/samplers/shard_plan.hpp"

/// Which ranks read a loader's samples and how they divide them, as a pure function of the options.
/// Thread rule: values.
namespace accel {

struct ReadingPlan {
  bool is_dispatched = false;    ///< rank 0 reads and sends each rank its part
  bool reads_own_parts = false;  ///< every rank reads separate parts of a stream
  int num_ranks = 1;             ///< number of ranks that get different samples
  ShardPlanOptions cut = {};     ///< division of the reader's order or stream; of one rank if no other reads the same

  /// Number of prefetching threads of a rank if `num_workers` are requested: at most one for a stream, unless each
  /// thread can read separate parts.
  [[nodiscard]] int num_readers(const DataSource& source, std::int64_t num_workers, int rank) const;
};

/// Plans a plain loader. Throws ArgumentError that lists all problems of the options.
ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options);
/// Plans a loader that is sharded for one rank. Throws ArgumentError if the batches cannot be divided.
ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard);

// The sampler of a rank's loader, and the generators that ranks synchronize. Thread rule: the rank's thread.

/// Returns the sampler of a plain loader; null for streams and batch samplers.
std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options);
/// Returns the plain sampler, with a generator if ranks must agree on the order, or a seedable sampler that replaces
/// it. Draws as documented at Loader's constructor. Collective for a seedable sampler without data_seed.
std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard,
                                         bool is_dispatched);
/// Synchronizes the generators named by `rng_types` before a pass; "generator" is that of the sampler or stream. Gives
/// a random sampler a generator if it has none. Collective.
void synchronize_rng(const DataSource& source, const DataLoaderOptions& options, Sampler* sampler,
                     const ShardOptions& shard);
/// Returns the steps of a rank; null for streams.
std::unique_ptr<StepSource> steps_of_rank(const std::shared_ptr<Sampler>& sampler, const DataLoaderOptions& options,
                                          const ShardPlanOptions& cut, int rank);

}  // namespace accel
