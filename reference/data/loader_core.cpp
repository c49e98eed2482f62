#include "reference/data/loader_core.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/data/batch_sampler_shard.hpp"
#include "reference/data/sampler_shard.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {
namespace {

void check(const DataSource& source, const DataLoaderOptions& options) {
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
  check_argument(problems.empty(), "DataLoader: {}", fmt::join(problems, "; "));
}

std::shared_ptr<Sampler> plain_sampler(const DataSource& source, const DataLoaderOptions& options) {
  if (source.is_stream || options.batch_sampler) return nullptr;
  if (options.sampler) return options.sampler;
  if (options.shuffle)
    return std::make_shared<RandomSampler>(*source.size, RandomSamplerOptions{.generator = options.generator});
  return std::make_shared<SequentialSampler>(*source.size);
}

// Without a data_seed the order follows rank 0's seed: ranks that were seeded apart (device_specific) would shuffle
// apart, and samples would be read twice and never. Accelerate leaves that to the user.
std::int64_t agreed_seed(const ShardOptions& shard) {
  if (shard.config.data_seed) return *shard.config.data_seed;
  auto seed =
      at::full({1}, static_cast<std::int64_t>(default_generator().current_seed()), at::kLong).to(shard.context->device);
  shard.context->world.broadcast(seed, /*root=*/0).wait();
  return seed.item<std::int64_t>();
}

bool is_seedable(const Sampler& sampler) { return dynamic_cast<const SeedableRandomSampler*>(&sampler) != nullptr; }

// As in Python, a sampler that draws and has no generator is given one, that ranks can agree on.
void give_generator(Sampler& sampler) {
  if (is_seedable(sampler) || !sampler.has_generator() || sampler.generator()) return;
  sampler.set_generator(make_generator(static_cast<std::uint64_t>(draw_int64(default_generator()))));
}

std::shared_ptr<Sampler> sampler_of_rank(const std::shared_ptr<Sampler>& plain, const ShardOptions& shard,
                                         bool is_dispatched) {
  check_argument(!plain->is_sharded() || shard.data_parallel.size == 1,
                 "prepare: the loader's sampler gives every rank a part already; give prepare a sampler of the whole, "
                 "or leave the loader unprepared");
  const auto* random = dynamic_cast<const RandomSampler*>(plain.get());
  if (random != nullptr && !is_seedable(*plain) && shard.config.seeds_order()) {
    return std::make_shared<SeedableRandomSampler>(
        random->length(), agreed_seed(shard),
        RandomSamplerOptions{
            .replacement = random->replacement(), .num_samples = random->size(), .generator = random->generator()});
  }
  // An elastic order is drawn alike on any number of ranks.
  if (shard.config.is_elastic() || (shard.context->world_size > 1 && !is_dispatched)) give_generator(*plain);
  return plain;
}

std::optional<at::Generator> generator_to_synchronize(const DataSource& source, const DataLoaderOptions& options,
                                                      const Sampler* sampler, const ShardOptions& shard) {
  if (shard.context->world_size == 1) return std::nullopt;
  if (source.is_stream) return source.generator;
  if (options.batch_sampler) return options.batch_sampler->generator();
  return is_seedable(*sampler) ? std::nullopt : sampler->generator();
}

bool dispatches(const DataSource& source, const ShardOptions& shard) {
  return shard.config.dispatch_batches.value_or(shard.put_on_device && source.is_stream);
}

// Each rank reads parts of its own; else every rank reads all of the stream, and keeps its share. An elastic order is
// one order for all.
bool has_parts_for_all(const DataSource& source, const ShardOptions& shard) {
  return !dispatches(source, shard) && shard.data_parallel.size > 1 && source.num_shards >= shard.data_parallel.size &&
         !shard.config.is_elastic();
}

ShardPlanOptions plan_of(const DataSource& source, const DataLoaderOptions& options) {
  return {.num_samples = source.size.value_or(0), .batch_size = options.batch_size, .drop_last = options.drop_last};
}

// A stream's shards are always even: every rank sees all of it, and fills up.
ShardPlanOptions plan_of(const DataSource& source, const DataLoaderOptions& options, const ShardOptions& shard) {
  auto plan = plan_of(source, options);
  plan.even_alone = shard.config.is_elastic();
  plan.num_ranks = shard.data_parallel.size;
  plan.split_batches = shard.config.splits();
  plan.even_batches = shard.config.even_batches || source.is_stream;
  check_argument(!shard.config.is_elastic() || !options.batch_sampler,
                 "prepare: order: elastic cuts batches itself; give batch_size in place of batch_sampler");
  // Throws if split_batches cannot cut, whoever reads.
  if (options.batch_sampler) {
    BatchSamplerShard::check(*options.batch_sampler,
                             {.num_ranks = plan.num_ranks, .split_batches = plan.split_batches});
  } else {
    plan_shards(plan);
  }
  if (!dispatches(source, shard) && !has_parts_for_all(source, shard)) return plan;
  auto alone = plan_of(source, options);
  if (!dispatches(source, shard)) alone.batch_size = plan_shards(plan).total_batch_size() / plan.num_ranks;
  return alone;
}

std::unique_ptr<StepSource> steps_of(const std::shared_ptr<Sampler>& sampler, const DataLoaderOptions& options,
                                     const ShardPlanOptions& plan, int rank) {
  if (sampler) return std::make_unique<SamplerShard>(sampler, plan, rank);
  if (!options.batch_sampler) return nullptr;
  return std::make_unique<BatchSamplerShard>(
      options.batch_sampler,
      BatchSamplerShard::Options{
          .num_ranks = plan.num_ranks, .split_batches = plan.split_batches, .even_batches = plan.even_batches},
      rank);
}

}  // namespace

LoaderCore::LoaderCore(DataSource source, DataLoaderOptions options)
    : source_(std::move(source)), options_(std::move(options)) {
  check(source_, options_);
  sampler_ = plain_sampler(source_, options_);
  reading_ = plan_of(source_, options_);
  if (sampler_) reading_.num_samples = sampler_->size();
  steps_ = steps_of(sampler_, options_, reading_, /*rank=*/0);
}

LoaderCore::LoaderCore(const LoaderCore& plain, ShardOptions shard)
    : source_(plain.source_),
      options_(plain.options_),
      shard_(std::move(shard)),
      is_dispatched_(dispatches(source_, shard_)),
      reads_own_parts_(has_parts_for_all(source_, shard_)),
      is_read_(plain.is_read_) {
  check_state(!plain.loaded_, "prepare: the loader has a loaded state that it has not begun; prepare first, then load");
  reading_ = plan_of(source_, options_, shard_);
  sampler_ = plain.sampler_ ? sampler_of_rank(plain.sampler_, shard_, is_dispatched_) : nullptr;
  if (sampler_) reading_.num_samples = sampler_->size();
  steps_ = steps_of(sampler_, options_, reading_, reading_rank());
}

int LoaderCore::batches_per_step() const { return shard_.config.splits() ? 1 : shard_.data_parallel.size; }

std::int64_t LoaderCore::full_rows() const { return shard_.config.is_elastic() ? options_.batch_size : 0; }

std::int64_t LoaderCore::units_per_step() const {
  const auto of_a_read_batch = steps_ ? steps_->units_per_step() : plan_shards(reading_).total_batch_size();
  return is_dispatched_ ? of_a_read_batch * batches_per_step() : of_a_read_batch;
}

void LoaderCore::set_epoch(std::int64_t epoch) {
  check_argument(epoch >= 0, "set_epoch: expected 0 or more, got {}", epoch);
  if (epoch != iteration_) loaded_.reset();
  left_.reset();
  iteration_ = epoch;
}

int LoaderCore::num_readers(std::int64_t num_workers, int rank) const {
  if (!source_.is_stream || num_workers == 0) return static_cast<int>(num_workers);
  const auto& ranks = shard_.data_parallel;
  if (source_.generator) return 1;  // it is one for all parts
  const bool every_rank_reads_all = is_prepared() && !is_dispatched_ && !reads_own_parts_ && ranks.size > 1;
  if (every_rank_reads_all) return 1;
  const auto num_parts = reads_own_parts_
                             ? source_.num_shards / ranks.size + (rank < source_.num_shards % ranks.size ? 1 : 0)
                             : source_.num_shards;
  return static_cast<int>(std::clamp<std::int64_t>(num_parts, 1, num_workers));
}

void LoaderCore::set_even_batches(bool even_batches) {
  if (even_batches == shard_.config.even_batches) return;
  shard_.config.even_batches = even_batches;
  if (is_dispatched_ || !steps_) return;
  reading_.even_batches = even_batches;
  steps_are_old_ = true;
  if (open_pass_ == nullptr) renew_steps();
}

// An open pass keeps its own.
void LoaderCore::renew_steps() {
  if (std::exchange(steps_are_old_, false)) steps_ = steps_of(sampler_, options_, reading_, reading_rank());
}

std::optional<std::int64_t> LoaderCore::num_read_batches() const {
  if (steps_) return steps_->size();
  if (reads_own_parts_) return std::nullopt;  // parts may be of different lengths
  return source_.size ? std::optional(plan_shards(reading_).num_batches(reading_rank())) : std::nullopt;
}

std::optional<std::int64_t> LoaderCore::size() const {
  const auto batches = num_read_batches();
  if (!batches || !is_dispatched_) return batches;
  const auto per_step = batches_per_step();
  return (*batches + (options_.drop_last ? 0 : per_step - 1)) / per_step;
}

// A rank without a batch counts its epochs as the others do.
bool LoaderCore::others_may_have_batches() const {
  const bool ranks_differ = is_prepared() && !is_dispatched_ && !even_batches() && shard_.data_parallel.size > 1;
  return ranks_differ && (!sampler_ || reading_.num_samples > 0);
}

// A rank that is not the main one tells, so that an evaluation on the main process alone is none of this.
void LoaderCore::warn_of_whole_reads(std::source_location where) {
  if (is_prepared() || has_warned_) return;
  auto* context = find_current_rank();
  if (context == nullptr || context->rank != 1 || !context->has_prepared) return;
  has_warned_ = true;
  const auto length = source_.size ? fmt::format("{} samples", *source_.size) : "a stream";
  context->warn(
      fmt::format("{}:{}: this loop reads an accel::DataLoader of {} (batch_size {}) that was not prepared, so every "
                  "rank reads all of it: pass the loader to prepare, and loop over the one that prepare returns",
                  where.file_name(), where.line(), length, options_.batch_size));
}

std::int64_t LoaderCore::total_batch_size() const {
  const auto batch_size =
      options_.batch_sampler ? options_.batch_sampler->batch_size() : std::optional(options_.batch_size);
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
  if (sampler_ && shard_.context->world_size > 1)
    give_generator(*sampler_);  // a state from one rank alone may have taken it
  const auto synchronized = generator_to_synchronize(source_, options_, sampler_.get(), shard_);
  for (const auto& type : shard_.rng_types) {
    if (type != "generator") {
      synchronize_rng_state(*shard_.context, type);
    } else if (synchronized) {
      synchronize_generator(*shard_.context, *synchronized);
    }
  }
}

// --- state -----------------------------------------------------------------------------------------------------------

std::string LoaderCore::source_name() const {
  if (sampler_) return "samples";
  if (steps_) return "batches";
  return reads_own_parts_ ? "shards" : "stream";
}

Value LoaderCore::order() const {
  if (is_prepared() && !reads()) return {};
  if (steps_) return steps_->state_dict();
  return source_.generator ? Value::Dict{{"generator", source_.generator->get_state()}} : Value::Dict{};
}

void LoaderCore::load_order(const Value& order) {
  if (order.is_null()) return;
  if (steps_) {
    steps_->load_state_dict(order);
    return;
  }
  check_argument(source_.generator.has_value() == order.contains("generator"),
                 "a state of a stream {} a generator, and this one is {}", source_.generator ? "without" : "with",
                 source_.generator ? "with one" : "without");
  if (source_.generator) restore_generator(*source_.generator, order.at("generator").as<at::Tensor>());
}

LoaderState LoaderCore::state() const {
  LoaderState state{.source = source_name(),
                    .num_samples = source_.size,
                    .num_shards = source_.num_shards,
                    .num_workers = options_.num_workers,
                    .epoch = iteration_};
  if (is_prepared()) {
    state.num_processes = shard_.data_parallel.size;
    state.process_index = shard_.data_parallel.rank;
  }
  if (options_.generator) state.generator = options_.generator->get_state();
  if (open_pass_ != nullptr) {
    state.order = open_pass_->order_;
    state.pass = open_pass_->state_;
  } else if (const auto& begun = loaded_ ? loaded_ : left_) {
    state.order = begun->order;
    state.pass = begun->pass;
  } else {
    state.order = order();
  }
  return state;
}

void LoaderCore::load_state(const LoaderState& state) {
  check_state(open_pass_ == nullptr, "load_state_dict: a pass over this loader is open; load before the loop");
  const auto own = this->state();
  const bool same_ranks = state.num_processes == own.num_processes, reads = !is_prepared() || this->reads();
  const bool reads_by_parts = source_.is_stream && num_readers() > 1;
  std::vector<std::string> problems;
  if (state.source != own.source)
    problems.push_back(fmt::format("it is of a loader that reads {}, this one reads {}", state.source, own.source));
  if (state.num_samples != own.num_samples) {
    const auto text = [](const auto& size) {
      return size ? fmt::format("{} samples", *size) : std::string("an unknown number of samples");
    };
    problems.push_back(
        fmt::format("it is of a dataset of {}, this one has {}", text(state.num_samples), text(own.num_samples)));
  }
  if (same_ranks && state.process_index != own.process_index) {
    problems.push_back(fmt::format("it is of rank {} of {}, and this is rank {}", state.process_index,
                                   state.num_processes, own.process_index));
  }
  if (reads && state.order.is_null())
    problems.emplace_back("it is of a rank that rank 0 reads for, and holds no order; load rank 0's");
  if (!same_ranks && state.process_index != 0) {
    problems.push_back(fmt::format("it is of rank {} of {}, and there are {} now; load rank 0's on every rank",
                                   state.process_index, state.num_processes, own.num_processes));
  }
  if (state.num_shards != own.num_shards)
    problems.push_back(fmt::format("it is of a stream of {} parts, this one has {}", state.num_shards, own.num_shards));
  // Rank 0 has as many readers as any: all ranks find the same.
  const auto readers_then = num_readers(state.num_workers, 0), readers_now = num_readers(options_.num_workers, 0);
  if (state.pass && source_.is_stream && std::max(readers_then, readers_now) > 1 && readers_then != readers_now) {
    problems.push_back(
        fmt::format("{} workers have begun an epoch, each with parts of its own, and this loader has {}; set "
                    "num_workers to what it was",
                    readers_then, readers_now));
  } else if (reads && state.pass && reads_by_parts && static_cast<int>(state.pass->readers.size()) != num_readers()) {
    problems.push_back(
        fmt::format("it holds {} workers' places, expected {}", state.pass->readers.size(), num_readers()));
  }
  if (!same_ranks && state.source == "shards" && state.pass) {
    problems.push_back(fmt::format(
        "{} ranks have begun an epoch, each with parts of its own, that {} ranks cannot take over; let rank 0 read "
        "(dispatch_batches: true) or use order: elastic",
        state.num_processes, own.num_processes));
  }
  if (problems.empty()) {
    try {
      load_order(state.order);
    } catch (const ArgumentError& error) {
      problems.emplace_back(error.what());
    }
  }
  if (!problems.empty())
    throw CheckpointError(fmt::format("load_state_dict: the state does not fit: {}", fmt::join(problems, "; ")));

  iteration_ = state.epoch;
  if (state.generator.defined() && options_.generator) options_.generator->set_state(state.generator);
  loaded_.reset();
  left_.reset();
  if (!state.pass) return;
  loaded_ = state;
  if (!same_ranks) loaded_->pass->ahead_state = at::Tensor();  // of another rank
  if (!same_ranks && !reads_by_parts) {
    loaded_->pass->readers.clear();
    loaded_->pass->next_reader = 0;
  }
}

// --- a pass ----------------------------------------------------------------------------------------------------------

LoaderCore::Pass::Pass(LoaderCore& core, std::int64_t skip_batches) : core_(core) {
  check_state(!*core.is_read_,
              "DataLoader: a pass over this loader, or one that shares its dataset and sampler, is open; a loop inside "
              "the loop needs a "
              "loader of its own");
  core.renew_steps();
  taken_ = core.loaded_;
  if (taken_) {
    state_ = *taken_->pass;
    order_ = taken_->order;
  }
  position_ = state_.num_read;
  const auto units = core.units_per_step();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
  state_.num_read = skip_batches > (kMost - state_.num_read) / units ? kMost : state_.num_read + skip_batches * units;
  const bool place_is_known =
      !core.source_.is_stream || (!core.is_dispatched_ && !core.reads_own_parts_ && core.num_readers() <= 1);
  if (place_is_known) {
    position_ = state_.num_read;
  } else {
    num_to_discard_ = skip_batches;
  }
  if (core.is_prepared()) begin();
  core.loaded_.reset();
  core.left_.reset();
  core.open_pass_ = this;
  *core.is_read_ = true;
}

bool LoaderCore::Pass::needs_start() const {
  const bool may_fill_up = !core_.options_.drop_last && core_.is_prepared() &&
                           (core_.shard_.data_parallel.size > 1 || core_.full_rows() > 0);
  return position_ > 0 && may_fill_up;
}

void LoaderCore::Pass::begin() {
  auto& core = core_;
  if (!core.is_dispatched_ && !is_resumed()) core.synchronize_rng();
  const bool knows_its_end = core.sampler_ && !core.is_dispatched_ && !core.options_.drop_last;
  if (knows_its_end) {
    auto reading = core.reading_;
    reading.num_read = state_.num_read;
    active_.remainder = plan_shards(reading).remainder();
  }
  active_.fills_up = core.is_dispatched_ || core.reading_.even_batches;
  if (core.steps_) core.steps_->set_epoch(core.iteration_);
  core.shard_.context->gradient_state.add(&active_);  // last: nothing throws behind it
}

void LoaderCore::Pass::start() {
  if (is_resumed()) {
    restore_order();
    return;
  }
  // A dispatched loader's iterator has no generator of its own.
  const bool draws_own = core_.options_.generator && !core_.is_dispatched_;
  state_.base_seed = draw_int64(draws_own ? *core_.options_.generator : default_generator());
  state_.random_state = default_generator().get_state();
  order_ = core_.order();
  // Python's workers are handed their first indices on every rank, also where rank 0 alone reads.
  if (!core_.reads() && core_.options_.num_workers > 0 && core_.sampler_) core_.sampler_->begin_pass();
}

void LoaderCore::Pass::restore_order() { core_.load_order(order_); }

detail::ReadersOptions LoaderCore::Pass::readers() {
  auto readers = readers_of_start();
  readers.prefetch_factor = core_.options_.prefetch_factor;
  const auto num_readers = static_cast<std::size_t>(readers.num_workers);
  if (state_.readers.size() != num_readers) {  // other workers begin with their seeds
    state_.readers.assign(num_readers, {});
    state_.next_reader = 0;
  }
  for (const auto& reader : state_.readers) readers.generators.push_back(reader.generator);
  readers.next = static_cast<int>(state_.next_reader);
  return readers;
}

detail::ReadersOptions LoaderCore::Pass::readers_of_start() const {
  return {.num_workers = core_.num_readers(),
          .prefetch_factor = 1,
          .base_seed = static_cast<std::uint64_t>(state_.base_seed)};
}

void LoaderCore::Pass::count(const std::vector<detail::ReaderMark>& marks) {
  for (const auto& mark : marks) {
    if (mark.reader == detail::kRankThread) {
      state_.ahead_state = mark.generator;
    } else if (mark.reader == detail::kLeftOver) {
      state_.num_left_over += mark.num_samples;
    } else {
      auto& reader = state_.readers.at(mark.reader);
      reader.num_samples += mark.num_samples;
      reader.generator = mark.generator;
      state_.next_reader = (mark.reader + 1) % static_cast<std::int64_t>(state_.readers.size());
    }
  }
}

LoaderCore::Pass::~Pass() { close(); }

// Once: after its end, another pass may be open.
void LoaderCore::Pass::close() {
  if (!std::exchange(is_open_, false)) return;
  core_.open_pass_ = nullptr;
  *core_.is_read_ = false;
  if (has_handed_out_) {
    core_.left_ = LoaderState{.order = std::move(order_), .pass = std::move(state_)};
  } else {
    core_.loaded_ = std::move(taken_);  // its first batch could not be read: the place is not lost
  }
  if (core_.is_prepared()) core_.shard_.context->gradient_state.remove(&active_);
}

void LoaderCore::Pass::mark_end(std::int64_t remainder) {
  active_.end_of_dataloader = true;
  if (!core_.options_.drop_last) active_.remainder = remainder;
}

void LoaderCore::Pass::finish(bool any_batch) {
  has_handed_out_ = false;
  taken_.reset();
  close();
  core_.left_.reset();
  if (any_batch || core_.others_may_have_batches()) ++core_.iteration_;
}

}  // namespace accel
