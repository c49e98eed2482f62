// What a loader is, and how a pass begins and ends for it. Saved states: loader_state_dict.cpp.
//
// Note [Position of a loader]
// The position in an epoch is a number of units that all ranks together have been handed: samples, or batches of a
// user's batch sampler. It does not depend on the rank, the number of workers or the prefetch, so a state can be loaded
// with other values of all three. LoaderPosition is the state machine that decides what each event means; the order and
// the random numbers that belong to it are a SavedPass. While a pass is open, the pass has both. Between passes the
// loader has them in `position_` and, if the position is inside an epoch, in `saved_pass_`: a load that no pass has
// used yet, or a loop that was left, whose place serves only state_dict(). A pass that is closed before it has handed
// out a batch leaves `saved_pass_` unchanged, so an exception between load_state_dict and the first batch does not lose
// it.
#include "reference/data/loader.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <utility>

#include "reference/core/errors.hpp"
#include "reference/data/pass.hpp"
#include "reference/data/reading_plan.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/state/warnings.hpp"

namespace accel::detail {

Loader::Loader(DataSource source, DataLoaderOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      plan_(plan_reading(source_, options_)),
      sampler_(plain_sampler(source_, options_)) {
  if (sampler_) plan_.cut.num_samples = sampler_->size();
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, /*rank=*/0);
}

// Shares `open_pass_` with the plain loader: both use one dataset and one sampler, so only one of them may have an open
// pass.
Loader::Loader(const Loader& plain, ShardOptions shard)
    : source_(plain.source_), options_(plain.options_), shard_(std::move(shard)), open_pass_(plain.open_pass_) {
  check_state(!plain.position_.start().continues,
              "prepare: load_state_dict was called on the unprepared loader; call prepare first, then load_state_dict");
  plan_ = plan_reading(source_, options_, shard_);
  if (plain.sampler_) {
    sampler_ = sampler_of_rank(plain.sampler_, shard_, is_dispatched());
    plan_.cut.num_samples = sampler_->size();
  }
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
  warn_of_unused_options();
}

void Loader::warn_of_unused_options() const {
  if (options_.worker_init_fn && options_.num_workers == 0)
    warn_once(context(), "prepare: the loader's worker_init_fn is not called, because num_workers is 0");
  if (options_.pin_memory == true && context().device.is_cpu())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because the rank computes on the CPU");
  if (options_.pin_memory == true && is_dispatched())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because rank 0 reads and sends its batches");
}

// Source: accelerate/data_loader.py, DataLoaderDispatcher._fetch_batches: with split_batches rank 0 reads one
// batch and divides it, otherwise it reads one batch per rank.
int Loader::batches_per_step() const { return shard_.config.splits() ? 1 : shard_.data_parallel.size; }

std::int64_t Loader::full_rows() const { return shard_.config.is_elastic() ? options_.batch_size : 0; }

int Loader::num_readers() const { return plan_.num_readers(source_, options_.num_workers, shard_.data_parallel.rank); }

// A dispatched loader's plan is that of one rank, so its unit count is multiplied by the batches of a step.
std::int64_t Loader::units_per_step() const {
  const auto of_a_read_batch = steps_ ? steps_->units_per_step() : plan_shards(reading()).total_batch_size();
  return is_dispatched() ? of_a_read_batch * batches_per_step() : of_a_read_batch;
}

void Loader::set_epoch(std::int64_t epoch) {
  check_argument(epoch >= 0, "set_epoch: expected an epoch of 0 or more, got {}", epoch);
  if (auto* pass = open_pass()) {  // it keeps its number of batches, which may depend on the epoch
    pass->set_epoch(epoch);
    return;
  }
  position_.set_epoch(epoch);
  if (!position_.is_inside()) saved_pass_.reset();
  if (steps_) steps_->set_epoch(epoch);
}

// Called by join_uneven_inputs, possibly inside a loop. The open pass keeps its steps, because the ranks have
// agreed on them; the new setting applies from the next pass.
void Loader::set_even_batches(bool even_batches) {
  if (even_batches == shard_.config.even_batches) return;
  shard_.config.even_batches = even_batches;
  if (is_dispatched() || !steps_) return;
  plan_.cut.even_batches = even_batches;
  steps_outdated_ = true;
  if (!is_being_read()) renew_steps();
}

void Loader::divide_anew(const DataParallel& data_parallel) {
  check_state(!is_being_read(),
              "elastic: a rank was lost inside a loop over a prepared loader; loop within ElasticRun::repeatable");
  shard_.data_parallel = data_parallel;
  plan_ = plan_reading(source_, options_, shard_);
  if (sampler_) plan_.cut.num_samples = sampler_->size();
  steps_outdated_ = true;
  renew_steps();
}

// Deferred while a pass is open: its stream has a reference to the current steps.
void Loader::renew_steps() {
  if (std::exchange(steps_outdated_, false)) steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
}

std::optional<std::int64_t> Loader::num_read_batches() const {
  if (steps_) return steps_->size();
  if (reads_own_parts()) return std::nullopt;  // parts may be of different lengths
  return source_.size ? std::optional(plan_shards(reading()).num_batches(reading_rank())) : std::nullopt;
}

// A dispatched loader reads batches_per_step batches for each step of a rank; drop_last drops an incomplete step.
std::optional<std::int64_t> Loader::size() const {
  const auto batches = num_read_batches();
  if (!batches || !is_dispatched()) return batches;
  const auto per_step = batches_per_step();
  return (*batches + (options_.drop_last ? 0 : per_step - 1)) / per_step;
}

// The most common mistake when moving a training program: a loader that was not prepared. Rank 1 reports it, not
// rank 0, because an evaluation on the main process alone is legitimate.
void Loader::warn_about_unsharded_reads(std::source_location where) {
  if (is_prepared() || has_warned_) return;
  auto* context = find_current_rank();
  if (context == nullptr || context->rank != 1 || !context->has_prepared) return;
  has_warned_ = true;
  const auto length = source_.size ? fmt::format("{} samples", *source_.size) : "a stream";
  warn_once(
      *context,
      fmt::format("{}:{}: this loop reads an accel::DataLoader of {} (batch_size {}) that was not prepared, so every "
                  "rank reads all of it: pass the loader to prepare, and loop over the one that prepare returns",
                  where.file_name(), where.line(), length, options_.batch_size));
}

// Source: accelerate/data_loader.py, DataLoaderShard.total_batch_size.
std::int64_t Loader::total_batch_size() const {
  const auto batch_size =
      options_.batch_sampler ? options_.batch_sampler->batch_size() : std::optional(options_.batch_size);
  check_state(batch_size.has_value(),
              "total_batch_size: the batch sampler does not define batch_size(), because its batches vary");
  return is_prepared() ? *batch_size * batches_per_step() : *batch_size;
}

std::optional<std::int64_t> Loader::batch_size_of_rank() const {
  if (options_.batch_sampler && !options_.batch_sampler->batch_size()) return std::nullopt;
  return is_prepared() ? total_batch_size() / data_parallel().size : total_batch_size();
}

std::int64_t Loader::total_dataset_length() const {
  check_state(source_.size.has_value(),
              "total_dataset_length: the dataset is a stream without size(); expected a dataset that defines size()");
  return *source_.size;
}

// Streams and dispatched batches have no indices.
ProgramObserver::LoaderFacts Loader::facts() const {
  const bool has_indices = !is_stream() && !is_dispatched();
  return {.size = has_indices ? source_.size : std::nullopt,
          .batch_size = options_.batch_sampler ? options_.batch_sampler->batch_size() : options_.batch_size,
          .drop_last = options_.batch_sampler ? options_.batch_sampler->drop_last() : options_.drop_last,
          .shuffles = sampler_ && sampler_->shuffles(),
          .is_divided = is_prepared() || (sampler_ && sampler_->is_sharded()),
          .num_workers = options_.num_workers};
}

// Nobody else has the copy that pin_memory makes, here or where batches are read. Other pinned batches may be the
// program's, which may change them next, so the options decide whether to wait.
at::Tensor Loader::begin_move(const at::Tensor& tensor) {
  const auto device = context().device;
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && tensor.layout() == at::kStrided;
  const bool is_own_copy = crosses && pins_batches();
  const bool is_pinned_here = crosses && !options_.pin_memory && !tensor.is_pinned();
  if (!is_own_copy && !is_pinned_here) return tensor.to(device, shard_.config.non_blocking);
  if (!copies_) copies_.emplace(device);
  return copies_->copy(is_own_copy ? tensor : tensor.pin_memory());
}

bool Loader::pins_batches() const {
  const auto* rank = is_prepared() ? shard_.context : find_current_rank();
  return options_.pin_memory == true && rank != nullptr && !rank->device.is_cpu() && !is_dispatched();
}

std::optional<std::uint64_t> Loader::sample_seed() const {
  const auto* rank = find_current_rank();
  return rank == nullptr ? std::nullopt : rank->sample_seed;
}

void Loader::finish_moves() const {
  if (copies_) copies_->join();
}

bool Loader::moves_batches() const {
  return is_prepared() && !is_dispatched() && shard_.put_on_device && !shard_.context->device.is_cpu();
}

// --- pass ------------------------------------------------------------------------------------------------------------

Pass* Loader::open_pass() const {
  auto* const pass = *open_pass_;
  return pass != nullptr && pass->belongs_to(*this) ? pass : nullptr;
}

const LoaderPosition& Loader::position() const {
  const auto* const pass = open_pass();
  return pass != nullptr ? pass->position() : position_;
}

std::optional<SavedPass> Loader::next_pass() {
  check_state(*open_pass_ == nullptr,
              "DataLoader: a pass over this loader, or over one that shares its dataset and sampler, is already open; "
              "create a separate loader for a nested loop");
  finish_workers();
  renew_steps();
  return position_.start().continues ? saved_pass_ : std::nullopt;
}

void Loader::close_pass(const LoaderPosition& position, std::optional<SavedPass> left) {
  *open_pass_ = nullptr;
  position_ = position;
  if (left) saved_pass_ = std::move(left);
  if (!position_.is_inside()) saved_pass_.reset();
}

// Only the steps of a sampler or batch sampler can differ in number where ranks do not read separate parts.
LastStep Loader::last_step() const {
  return steps_ && is_prepared() && !is_dispatched() ? steps_->last_step() : LastStep::kOfAllRanks;
}

// Without even_batches a rank may get no batch at all. It must still advance its epoch with the others, or the
// ranks would shuffle differently.
bool Loader::other_ranks_may_have_batches() const {
  const bool ranks_differ = is_prepared() && !is_dispatched() && !even_batches() && shard_.data_parallel.size > 1;
  return ranks_differ && (!sampler_ || reading().num_samples > 0);
}

// --- order -----------------------------------------------------------------------------------------------------------

// Null on ranks that rank 0 reads for, because their samplers do not determine the order.
Value Loader::order() const {
  if (is_prepared() && !reads()) return {};
  if (steps_) return steps_->state_dict();
  return source_.generator ? Value::Dict{{"generator", source_.generator->get_state()}} : Value::Dict{};
}

void Loader::load_order(const Value& order) {
  if (order.is_null()) return;
  if (steps_) {
    steps_->load_state_dict(order);
    return;
  }
  check_argument(source_.generator.has_value() == order.contains("generator"),
                 "the state is of a stream {} a generator, but this stream is {}",
                 source_.generator ? "without" : "with", source_.generator ? "with one" : "without");
  if (source_.generator) restore_generator(*source_.generator, order.at("generator").as<at::Tensor>());
}

// An epoch that resumes was synchronized when it began, and restore_order sets the generators to the states of
// that moment. Source: accelerate/data_loader.py, DataLoaderShard.__iter__.
void Loader::begin_epoch(bool is_resumed) {
  if (!is_dispatched() && !is_resumed) synchronize_rng(source_, options_, sampler_.get(), shard_);
  if (steps_) steps_->set_epoch(iteration());
}

// Python gives its workers their first indices on every rank, even where only rank 0 reads. The draw must be
// repeated here, or the generators of the ranks would differ afterwards.
void Loader::draw_as_reader() {
  if (!reads() && options_.num_workers > 0 && sampler_) sampler_->begin_pass();
}

// A stream position is a sample count only if one thread reads the stream of this rank from its start. With
// several parts, the count does not determine how far each part was read, and a skip must read.
bool Loader::can_seek() const {
  return !source_.is_stream || (!is_dispatched() && !reads_own_parts() && num_readers() <= 1);
}

// Published before the loop, like Accelerate's begin(), where the length of the dataset is known. drop_last has
// no remainder.
std::optional<std::int64_t> Loader::remainder_after(std::int64_t num_read) const {
  if (!sampler_ || is_dispatched() || options_.drop_last) return std::nullopt;
  auto rest = reading();
  rest.num_read = num_read;
  return plan_shards(rest).remainder();
}

// --- workers ---------------------------------------------------------------------------------------------------------

std::optional<WorkersState> Loader::workers_state() const {
  if (!workers_state_ || !workers_ || workers_->has_given_up()) return workers_state_;
  workers_->finish();
  return WorkersState{.base_seed = workers_state_->base_seed, .generators = workers_->generator_states()};
}

void Loader::keep_seed(std::int64_t base_seed) {
  if (!options_.persistent_workers || (workers_state_ && workers_state_->base_seed == base_seed)) return;
  workers_state_ = WorkersState{.base_seed = base_seed};
}

// Persistent workers finish what a loop that an exception left has queued, before the dataset's epoch changes. A thread
// that a time-out left behind may still read a stream, which only one thread may.
void Loader::finish_workers() {
  if (!workers_) return;
  if (!workers_->has_given_up()) {
    workers_->finish();
    return;
  }
  check_state(
      !is_stream() && !options_.persistent_workers,
      "DataLoader: a worker still reads for a loop that ended with a time-out; create a new dataset and loader");
  workers_.reset();
}

// Persistent workers must end what they have queued, and so must the thread that reads a stream: else a dataset with a
// position or a generator of its own would be left where the thread happened to be. An exception of the loop's body
// must not wait for the dataset: the next pass does, before it starts.
void Loader::release_workers(bool by_exception) {
  if (!workers_ || workers_->has_given_up()) return;
  const bool is_one_stream = is_stream() && num_readers() == 1;
  if (options_.persistent_workers || is_one_stream) {
    if (by_exception) return;
    try {
      workers_->finish();
    } catch (const Error&) {  // the next pass throws: has_given_up
      return;
    }
  }
  if (!options_.persistent_workers) workers_.reset();
}

}  // namespace accel::detail
