#include "reference/data/reading_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/data/samplers/batch_sampler_shard.hpp"

namespace accel {
namespace {

std::vector<std::string> problems_of(const DataSource& source, const DataLoaderOptions& options) {
  std::vector<std::string> problems;
  if (options.batch_size < 1)
    problems.push_back(fmt::format("batch_size: expected 1 or more, got {}", options.batch_size));
  if (options.num_workers < 0)
    problems.push_back(fmt::format("num_workers: expected 0 or more, got {}", options.num_workers));
  if (options.prefetch_factor < 1)
    problems.push_back(fmt::format("prefetch_factor: expected 1 or more, got {}", options.prefetch_factor));
  if (source.size.value_or(0) < 0) problems.push_back(fmt::format("dataset: a size of {}", *source.size));
  if (options.shuffle && options.sampler) problems.emplace_back("shuffle and sampler exclude each other; give one");
  if (options.batch_sampler && (options.batch_size != 1 || options.shuffle || options.drop_last || options.sampler)) {
    problems.emplace_back("batch_sampler excludes batch_size, shuffle, drop_last and sampler");
  }
  if (source.is_stream && (options.shuffle || options.sampler || options.batch_sampler)) {
    problems.emplace_back(
        "an iterable dataset has its own order: shuffle, sampler and batch_sampler need a dataset with indices");
  }
  return problems;
}

ShardPlanOptions cut_of_one_rank(const DataSource& source, const DataLoaderOptions& options) {
  return {.num_samples = source.size.value_or(0), .batch_size = options.batch_size, .drop_last = options.drop_last};
}

ShardPlanOptions cut_of_all_ranks(const DataSource& source, const DataLoaderOptions& options,
                                  const ShardOptions& shard) {
  auto cut = configured(cut_of_one_rank(source, options), shard.config, source.is_stream);
  cut.num_ranks = shard.data_parallel.size;
  return cut;
}

// Throws if split_batches cannot cut, whoever reads.
void check_cut(const ShardPlanOptions& cut, const DataLoaderOptions& options, const ShardOptions& shard) {
  check_argument(!shard.config.is_elastic() || !options.batch_sampler,
                 "prepare: order: elastic cuts batches itself; give batch_size in place of batch_sampler");
  if (options.batch_sampler) {
    BatchSamplerShard::check(*options.batch_sampler, {.num_ranks = cut.num_ranks, .split_batches = cut.split_batches});
  } else {
    plan_shards(cut);
  }
}

// Else every rank reads all of the stream, and keeps its share. An elastic order is one order for all.
bool has_parts_for_all(const DataSource& source, const ShardOptions& shard) {
  return shard.data_parallel.size > 1 && source.num_shards >= shard.data_parallel.size && !shard.config.is_elastic();
}

}  // namespace

ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options) {
  const auto problems = problems_of(source, options);
  check_argument(problems.empty(), "DataLoader: {}", fmt::join(problems, "; "));
  return {.cut = cut_of_one_rank(source, options)};
}

ReadingPlan plan_reading(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard) {
  ReadingPlan plan{.num_ranks = shard.data_parallel.size, .cut = cut_of_all_ranks(source, options, shard)};
  check_cut(plan.cut, options, shard);
  plan.is_dispatched = shard.config.dispatch_batches.value_or(shard.put_on_device && source.is_stream);
  plan.reads_own_parts = !plan.is_dispatched && has_parts_for_all(source, shard);
  if (!plan.is_dispatched && !plan.reads_own_parts) return plan;
  const auto total_batch_size = plan.reads_own_parts ? plan_shards(plan.cut).total_batch_size() : 0;
  plan.cut = cut_of_one_rank(source, options);
  if (plan.reads_own_parts) plan.cut.batch_size = total_batch_size / plan.num_ranks;
  return plan;
}

int ReadingPlan::num_readers(const DataSource& source, std::int64_t num_workers, int rank) const {
  if (!source.is_stream || num_workers == 0) return static_cast<int>(num_workers);
  if (source.generator) return 1;  // all parts share it
  const bool every_rank_reads_all = !is_dispatched && !reads_own_parts && num_ranks > 1;
  if (every_rank_reads_all) return 1;
  const auto num_parts = reads_own_parts
                             ? source.num_shards / num_ranks + (rank < source.num_shards % num_ranks ? 1 : 0)
                             : source.num_shards;
  return static_cast<int>(std::clamp<std::int64_t>(num_parts, 1, num_workers));
}

}  // namespace accel
