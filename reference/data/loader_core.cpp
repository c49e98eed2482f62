#include "reference/data/loader_core.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <utility>

#include "reference/core/errors.hpp"
#include "reference/data/batch_sampler_shard.hpp"
#include "reference/data/sampler_shard.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

void check(const DataSource& source, const DataLoaderOptions& options) {
  std::vector<std::string> problems;
  if (options.batch_size < 1) problems.push_back(fmt::format("batch_size: expected 1 or more, got {}", options.batch_size));
  if (options.num_workers < 0) problems.push_back(fmt::format("num_workers: expected 0 or more, got {}", options.num_workers));
  if (options.prefetch_factor < 1) problems.push_back(fmt::format("prefetch_factor: expected 1 or more, got {}", options.prefetch_factor));
  if (source.size.value_or(0) < 0) problems.push_back(fmt::format("dataset: a size of {}", *source.size));
  if (options.shuffle && options.sampler) problems.emplace_back("shuffle and sampler exclude each other; give one");
  if (options.batch_sampler && (options.batch_size != 1 || options.shuffle || options.drop_last || options.sampler)) {
    problems.emplace_back("batch_sampler excludes batch_size, shuffle, drop_last and sampler");
  }
  if (source.is_stream && (options.shuffle || options.sampler || options.batch_sampler)) {
    problems.emplace_back("an iterable dataset has its own order: shuffle, sampler and batch_sampler need a dataset with indices");
  }
  check_argument(problems.empty(), "DataLoader: {}", fmt::join(problems, "; "));
}

std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options) {
  if (source.is_stream || options.batch_sampler) return nullptr;
  if (options.sampler) return options.sampler;
  if (options.shuffle) return std::make_shared<RandomSampler>(*source.size, RandomSamplerOptions{.generator = options.generator});
  return std::make_shared<SequentialSampler>(*source.size);
}

// Without a data_seed the order follows rank 0's seed: ranks that were seeded apart (device_specific) would shuffle apart,
// and samples would be read twice and never. Accelerate leaves that to the user.
std::int64_t agreed_seed(const ShardOptions& shard) {
  if (shard.config.data_seed) return *shard.config.data_seed;
  auto seed = at::full({1}, static_cast<std::int64_t>(default_generator().current_seed()), at::kLong).to(shard.context->device);
  shard.context->world.broadcast(seed, /*root=*/0).wait();
  return seed.item<std::int64_t>();
}

bool is_seedable(const Sampler& sampler) { return dynamic_cast<const SeedableRandomSampler*>(&sampler) != nullptr; }

// As in Python, a sampler that draws and has no generator is given one.
std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard, bool is_dispatched) {
  check_argument(!plain->is_sharded() || shard.context->world_size == 1,
                 "prepare: the loader's sampler gives every rank a part already; give prepare a sampler of the whole, or leave the loader unprepared");
  const auto* random = dynamic_cast<const RandomSampler*>(plain.get());
  if (random != nullptr && !is_seedable(*plain) && shard.config.use_seedable_sampler) {
    return std::make_shared<SeedableRandomSampler>(
        random->length(), agreed_seed(shard),
        RandomSamplerOptions{.replacement = random->replacement(), .num_samples = random->size(), .generator = random->generator()});
  }
  const bool reads_alone = shard.context->world_size == 1 || is_dispatched;
  if (!reads_alone && !is_seedable(*plain) && plain->has_generator() && !plain->generator()) {
    plain->set_generator(make_generator(static_cast<std::uint64_t>(draw_int64(default_generator()))));
  }
  return plain;
}

std::optional<at::Generator> generator_to_synchronize(const DataSource& source, const DataLoaderOptions& options, const Sampler* sampler,
                                                      const ShardOptions& shard) {
  if (shard.context->world_size == 1) return std::nullopt;
  if (source.is_stream) return source.generator;
  if (options.batch_sampler) return options.batch_sampler->generator();
  return is_seedable(*sampler) ? std::nullopt : sampler->generator();
}

bool dispatches(const DataSource& source, const ShardOptions& shard) {
  return shard.config.dispatch_batches.value_or(shard.put_on_device && source.is_stream);
}

ShardPlanOptions plan_of(const DataSource& source, const DataLoaderOptions& options) {
  return {.num_samples = source.size.value_or(0), .batch_size = options.batch_size, .drop_last = options.drop_last};
}

// A stream's shards are always even: every rank sees all of it, and fills up.
ShardPlanOptions plan_of(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard) {
  auto plan = plan_of(source, options);
  plan.num_ranks = shard.context->world_size;
  plan.split_batches = shard.config.split_batches;
  plan.even_batches = shard.config.even_batches || source.is_stream;
  // Throws if split_batches cannot cut, whoever reads.
  if (options.batch_sampler) {
    BatchSamplerShard::check(*options.batch_sampler, {.num_ranks = plan.num_ranks, .split_batches = plan.split_batches});
  } else {
    plan_shards(plan);
  }
  return dispatches(source, shard) ? plan_of(source, options) : plan;
}

std::unique_ptr<StepSource> steps_of(const std::shared_ptr<Sampler>& sampler, const DataLoaderOptions& options, const ShardPlanOptions& plan, int rank) {
  if (sampler) return std::make_unique<SamplerShard>(sampler, plan, rank);
  if (!options.batch_sampler) return nullptr;
  return std::make_unique<BatchSamplerShard>(
      options.batch_sampler,
      BatchSamplerShard::Options{.num_ranks = plan.num_ranks, .split_batches = plan.split_batches, .even_batches = plan.even_batches}, rank);
}

}  // namespace

LoaderCore::LoaderCore(DataSource source, DataLoaderOptions options) : source_(std::move(source)), options_(std::move(options)) {
  check(source_, options_);
  sampler_ = plain_sampler(source_, options_);
  reading_ = plan_of(source_, options_);
  if (sampler_) reading_.num_samples = sampler_->size();
  steps_ = steps_of(sampler_, options_, reading_, /*rank=*/0);
}

LoaderCore::LoaderCore(const LoaderCore& plain, ShardOptions shard)
    : source_(plain.source_), options_(plain.options_), shard_(std::move(shard)), is_dispatched_(dispatches(source_, shard_)) {
  reading_ = plan_of(source_, options_, shard_);
  sampler_ = plain.sampler_ ? sampler_of_rank(plain.sampler_, shard_, is_dispatched_) : nullptr;
  if (sampler_) reading_.num_samples = sampler_->size();
  if (!is_dispatched_) synchronized_generator_ = generator_to_synchronize(source_, options_, sampler_.get(), shard_);
  steps_ = steps_of(sampler_, options_, reading_, reading_rank());
}

int LoaderCore::batches_per_step() const { return shard_.config.split_batches ? 1 : shard_.context->world_size; }

std::optional<std::int64_t> LoaderCore::num_read_batches() const {
  if (steps_) return steps_->size();
  return source_.size ? std::optional(plan_shards(reading_).num_batches(reading_rank())) : std::nullopt;
}

std::optional<std::int64_t> LoaderCore::size() const {
  const auto batches = num_read_batches();
  if (!batches || !is_dispatched_) return batches;
  const auto per_step = batches_per_step();
  return (*batches + (options_.drop_last ? 0 : per_step - 1)) / per_step;
}

std::int64_t LoaderCore::total_batch_size() const {
  const auto batch_size = options_.batch_sampler ? options_.batch_sampler->batch_size() : std::optional(options_.batch_size);
  check_state(batch_size.has_value(), "total_batch_size: the batch sampler's batches vary");
  return is_prepared() ? *batch_size * batches_per_step() : *batch_size;
}

std::int64_t LoaderCore::total_dataset_length() const {
  check_state(source_.size.has_value(), "total_dataset_length: the dataset is a stream that does not know its length");
  return *source_.size;
}

bool LoaderCore::moves_batches() const {
  return is_prepared() && !is_dispatched_ && shard_.put_on_device && !shard_.context->device.is_cpu();
}

void LoaderCore::synchronize_rng() {
  for (const auto& type : shard_.rng_types) {
    if (type != "generator") {
      synchronize_rng_state(*shard_.context, type);
    } else if (synchronized_generator_) {
      synchronize_generator(*shard_.context, *synchronized_generator_);
    }
  }
}

LoaderCore::Pass::Pass(LoaderCore& core) : core_(core) {
  check_state(!core.has_open_pass_, "DataLoader: a pass over this loader is open; a loop inside the loop needs a loader of its own");
  if (core.is_prepared()) begin();
  core.has_open_pass_ = true;
}

void LoaderCore::Pass::begin() {
  auto& core = core_;
  if (!core.is_dispatched_) core.synchronize_rng();
  const bool knows_its_end = core.sampler_ && !core.is_dispatched_ && !core.options_.drop_last;
  if (knows_its_end) active_.remainder = plan_shards(core.reading_).remainder();
  if (core.steps_) core.steps_->set_epoch(core.iteration_);
  core.shard_.context->gradient_state.add(&active_);  // last: nothing throws behind it
}

std::uint64_t LoaderCore::Pass::start() {
  // A dispatched loader's iterator has no generator of its own.
  const bool draws_own = core_.options_.generator && !core_.is_dispatched_;
  const auto base_seed = static_cast<std::uint64_t>(draw_int64(draws_own ? *core_.options_.generator : default_generator()));
  // Python's workers are handed their first indices on every rank, also where rank 0 alone reads.
  if (!core_.reads() && core_.options_.num_workers > 0 && core_.sampler_) core_.sampler_->begin_pass();
  return base_seed;
}

LoaderCore::Pass::~Pass() { close(); }

// Once: after its end, another pass may be open.
void LoaderCore::Pass::close() {
  if (!std::exchange(is_open_, false)) return;
  core_.has_open_pass_ = false;
  if (core_.is_prepared()) core_.shard_.context->gradient_state.remove(&active_);
}

void LoaderCore::Pass::mark_end(std::int64_t remainder, std::optional<std::int64_t> num_rows) {
  active_.end_of_dataloader = true;
  active_.num_rows = num_rows;
  if (!core_.options_.drop_last) active_.remainder = remainder;
}

void LoaderCore::Pass::finish(bool any_batch) {
  close();
  if (any_batch) ++core_.iteration_;
}

}  // namespace accel
