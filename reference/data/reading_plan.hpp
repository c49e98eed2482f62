#pragma once

#include <cstdint>
#include <memory>
#include <optional>

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

// The sampler that a rank's loader reads by, and the generators on which ranks agree. Thread rule: the rank's thread.

/// Of a plain loader; null for streams and batch samplers.
std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options);
/// The plain one, given a generator where ranks must agree, or a seedable one in its place. Draws as LoaderCore's
/// constructor states. Collective for a seedable sampler without data_seed.
std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard,
                                         bool is_dispatched);
/// Synchronizes what `rng_types` names before a pass, "generator" being the one of the sampler or stream. Gives a
/// sampler that draws a generator if it has none. Collective.
void synchronize_rng(const DataSource& source, const DataLoaderOptions& options, Sampler* sampler,
                     const ShardOptions& shard);
/// The steps of a rank; null for streams.
std::unique_ptr<StepSource> steps_of_rank(const std::shared_ptr<Sampler>& sampler, const DataLoaderOptions& options,
                                          const ShardPlanOptions& cut, int rank);

}  // namespace accel
