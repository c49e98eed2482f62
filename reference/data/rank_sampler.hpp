#pragma once

#include <memory>
#include <optional>

#include "reference/data/loader_options.hpp"
#include "reference/data/reading_plan.hpp"

/// The sampler that a rank's loader reads by, and the generators on which ranks agree. Thread rule: the rank's thread.
namespace accel {

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
