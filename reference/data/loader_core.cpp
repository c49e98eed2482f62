// The loader core: everything about a DataLoader that does not depend on the type of a sample. DataLoader,
// PassCore and this class divide the work as follows.
//
// Note [Position of a loader]
// The position in an epoch is a number of units that all ranks together have been handed: samples, or batches of a
// user's batch sampler. It does not depend on the rank, the number of workers or the prefetch, so a state can be loaded
// with other values of all three. While a pass is open, PassCore owns the position. Between passes it is in `loaded_`
// (load_state_dict was called, no pass has used it yet) or in `left_` (the last loop was left early); at most one of
// the two is set. A new pass starts at `loaded_` and discards `left_`, which serves only state_dict().
#include "reference/data/loader_core.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/random.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/pass_core.hpp"
#include "reference/data/reading_plan.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

LoaderCore::LoaderCore(DataSource source, DataLoaderOptions options)
    : source_(std::move(source)),
      options_(std::move(options)),
      plan_(plan_reading(source_, options_)),
      sampler_(plain_sampler(source_, options_)) {
  if (sampler_) plan_.cut.num_samples = sampler_->size();
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, /*rank=*/0);
}

// Shares `is_read_` with the plain loader: both use one dataset and one sampler, so only one of them may have an
// open pass.
LoaderCore::LoaderCore(const LoaderCore& plain, ShardOptions shard)
    : source_(plain.source_), options_(plain.options_), shard_(std::move(shard)), is_read_(plain.is_read_) {
  check_state(!plain.loaded_,
              "prepare: load_state_dict was called on the unprepared loader; call prepare first, then load_state_dict");
  plan_ = plan_reading(source_, options_, shard_);
  if (plain.sampler_) {
    sampler_ = sampler_of_rank(plain.sampler_, shard_, is_dispatched());
    plan_.cut.num_samples = sampler_->size();
  }
  steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
  warn_of_unused_options();
}

void LoaderCore::warn_of_unused_options() const {
  if (options_.worker_init_fn && options_.num_workers == 0)
    warn_once(context(), "prepare: the loader's worker_init_fn is not called, because num_workers is 0");
  if (options_.pin_memory == true && context().device.is_cpu())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because the rank computes on the CPU");
  if (options_.pin_memory == true && is_dispatched())
    warn_once(context(), "prepare: the loader's pin_memory has no effect, because rank 0 reads and sends its batches");
}

// Source: accelerate/data_loader.py, DataLoaderDispatcher._fetch_batches: with split_batches rank 0 reads one
// batch and divides it, otherwise it reads one batch per rank.
int LoaderCore::batches_per_step() const { return shard_.config.splits() ? 1 : shard_.data_parallel.size; }

std::int64_t LoaderCore::full_rows() const { return shard_.config.is_elastic() ? options_.batch_size : 0; }

int LoaderCore::num_readers() const {
  return plan_.num_readers(source_, options_.num_workers, shard_.data_parallel.rank);
}

// A dispatched loader's plan is that of one rank, so its unit count is multiplied by the batches of a step.
std::int64_t LoaderCore::units_per_step() const {
  const auto of_a_read_batch = steps_ ? steps_->units_per_step() : plan_shards(reading()).total_batch_size();
  return is_dispatched() ? of_a_read_batch * batches_per_step() : of_a_read_batch;
}

void LoaderCore::set_epoch(std::int64_t epoch) {
  check_argument(epoch >= 0, "set_epoch: expected an epoch of 0 or more, got {}", epoch);
  // A position belongs to one epoch. Setting the same epoch again must keep it: resumed programs call set_epoch
  // with the epoch of the checkpoint.
  if (epoch != iteration_) loaded_.reset();
  left_.reset();
  iteration_ = epoch;
  // The number of batches may depend on the epoch. An open pass keeps its own.
  if (steps_ && open_pass_ == nullptr) steps_->set_epoch(epoch);
}

// Called by join_uneven_inputs, possibly inside a loop. The open pass keeps its steps, because the ranks have
// agreed on them; the new setting applies from the next pass.
void LoaderCore::set_even_batches(bool even_batches) {
  if (even_batches == shard_.config.even_batches) return;
  shard_.config.even_batches = even_batches;
  if (is_dispatched() || !steps_) return;
  plan_.cut.even_batches = even_batches;
  steps_outdated_ = true;
  if (open_pass_ == nullptr) renew_steps();
}

// Deferred while a pass is open: PassCore holds a reference to the current steps.
void LoaderCore::renew_steps() {
  if (std::exchange(steps_outdated_, false)) steps_ = steps_of_rank(sampler_, options_, plan_.cut, reading_rank());
}

std::optional<std::int64_t> LoaderCore::num_read_batches() const {
  if (steps_) return steps_->size();
  if (reads_own_parts()) return std::nullopt;  // parts may be of different lengths
  return source_.size ? std::optional(plan_shards(reading()).num_batches(reading_rank())) : std::nullopt;
}

// A dispatched loader reads batches_per_step batches for each step of a rank; drop_last drops an incomplete step.
std::optional<std::int64_t> LoaderCore::size() const {
  const auto batches = num_read_batches();
  if (!batches || !is_dispatched()) return batches;
  const auto per_step = batches_per_step();
  return (*batches + (options_.drop_last ? 0 : per_step - 1)) / per_step;
}

// The most common mistake when moving a training program: a loader that was not prepared. Rank 1 reports it, not
// rank 0, because an evaluation on the main process alone is legitimate.
void LoaderCore::warn_about_unsharded_reads(std::source_location where) {
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
std::int64_t LoaderCore::total_batch_size() const {
  const auto batch_size =
      options_.batch_sampler ? options_.batch_sampler->batch_size() : std::optional(options_.batch_size);
  check_state(batch_size.has_value(),
              "total_batch_size: the batch sampler does not define batch_size(), because its batches vary");
  return is_prepared() ? *batch_size * batches_per_step() : *batch_size;
}

std::int64_t LoaderCore::total_dataset_length() const {
  check_state(source_.size.has_value(),
              "total_dataset_length: the dataset is a stream without size(); expected a dataset that defines size()");
  return *source_.size;
}

// Nobody else has the copy that pin_memory makes, here or where batches are read. Other pinned batches may be the
// program's, which may change them next, so the options decide whether to wait.
at::Tensor LoaderCore::begin_move(const at::Tensor& tensor) {
  const auto device = context().device;
  const bool crosses = tensor.is_cpu() && !device.is_cpu() && tensor.layout() == at::kStrided;
  const bool is_own_copy = crosses && pins_batches();
  const bool is_pinned_here = crosses && !options_.pin_memory && !tensor.is_pinned();
  if (!is_own_copy && !is_pinned_here) return tensor.to(device, shard_.config.non_blocking);
  if (!copies_) copies_.emplace(device);
  return copies_->copy(is_own_copy ? tensor : tensor.pin_memory());
}

bool LoaderCore::pins_batches() const {
  const auto* rank = is_prepared() ? shard_.context : find_current_rank();
  return options_.pin_memory == true && rank != nullptr && !rank->device.is_cpu() && !is_dispatched();
}

void LoaderCore::finish_moves() const {
  if (copies_) copies_->join();
}

bool LoaderCore::moves_batches() const {
  return is_prepared() && !is_dispatched() && shard_.put_on_device && !shard_.context->device.is_cpu();
}

// --- order -----------------------------------------------------------------------------------------------------------

// Null on ranks that rank 0 reads for, because their samplers do not determine the order.
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
                 "the state is of a stream {} a generator, but this stream is {}",
                 source_.generator ? "without" : "with", source_.generator ? "with one" : "without");
  if (source_.generator) restore_generator(*source_.generator, order.at("generator").as<at::Tensor>());
}

// An epoch that resumes was synchronized when it began, and restore_order sets the generators to the states of
// that moment. Source: accelerate/data_loader.py, DataLoaderShard.__iter__.
void LoaderCore::begin_epoch(bool is_resumed) {
  if (!is_dispatched() && !is_resumed) synchronize_rng(source_, options_, sampler_.get(), shard_);
  if (steps_) steps_->set_epoch(iteration_);
}

// Python gives its workers their first indices on every rank, even where only rank 0 reads. The draw must be
// repeated here, or the generators of the ranks would differ afterwards.
void LoaderCore::draw_as_reader() {
  if (!reads() && options_.num_workers > 0 && sampler_) sampler_->begin_pass();
}

// A stream position is a sample count only if one thread reads the stream of this rank from its start. With
// several parts, the count does not determine how far each part was read, and a skip must read.
bool LoaderCore::can_seek() const {
  return !source_.is_stream || (!is_dispatched() && !reads_own_parts() && num_readers() <= 1);
}

// Published before the loop, like Accelerate's begin(), where the length of the dataset is known. drop_last has
// no remainder.
std::optional<std::int64_t> LoaderCore::remainder_after(std::int64_t num_read) const {
  if (!sampler_ || is_dispatched() || options_.drop_last) return std::nullopt;
  auto rest = reading();
  rest.num_read = num_read;
  return plan_shards(rest).remainder();
}

// --- place -----------------------------------------------------------------------------------------------------------

std::string LoaderCore::source_name() const {
  if (sampler_) return "samples";
  if (steps_) return "batches";
  return reads_own_parts() ? "shards" : "stream";
}

// See Note [Position of a loader].
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
    state.order = open_pass_->order();
    state.pass = open_pass_->state();
  } else if (const auto& begun = loaded_ ? loaded_ : left_) {
    state.order = begun->order;
    state.pass = begun->pass;
  } else {
    state.order = order();
  }
  if (open_pass_ == nullptr) state.workers = workers_state();
  return state;
}

namespace {

// A state inside a pass has the workers' generators after the batches that were handed out. They serve a program that
// discards the rest of the pass.
std::optional<WorkersState> workers_after(const LoaderState& state) {
  if (state.workers || !state.pass) return state.workers;
  WorkersState workers{.base_seed = state.pass->base_seed, .generators = state.pass->worker_starts};
  for (std::size_t reader = 0; reader < state.pass->readers.size(); ++reader) {
    workers.generators.resize(state.pass->readers.size());
    if (const auto& read = state.pass->readers[reader].generator; read.defined()) workers.generators[reader] = read;
  }
  return workers;
}

}  // namespace

void LoaderCore::load_state(const LoaderState& state) {
  check_state(open_pass_ == nullptr,
              "load_state_dict: a pass over this loader is open; call load_state_dict before the loop");
  const LoaderComparison fit{.own = this->state(),
                             .reads = !is_prepared() || reads(),
                             .is_stream = source_.is_stream,
                             .num_readers = num_readers(),
                             .readers_then = plan_.num_readers(source_, state.num_workers, /*rank=*/0),
                             .readers_now = plan_.num_readers(source_, options_.num_workers, /*rank=*/0)};
  // Everything that can fail runs before the first member changes: a refused state leaves the loader unchanged.
  auto problems = problems_of(state, fit);
  if (problems.empty()) {
    try {
      load_order(state.order);
    } catch (const ArgumentError& error) {
      problems.emplace_back(error.what());
    }
  }
  if (!problems.empty())
    throw CheckpointError(
        fmt::format("load_state_dict: the state does not match this loader: {}", fmt::join(problems, "; ")));

  iteration_ = state.epoch;
  if (state.generator.defined() && options_.generator) options_.generator->set_state(state.generator);
  left_.reset();
  loaded_ = resume_position_for(fit, state);
  workers_of_pass_.reset();
  workers_ = options_.persistent_workers ? workers_after(state) : std::nullopt;
  if (workers_ && !fit.has_ranks_of(state)) workers_->generators.clear();  // they are of rank 0
}

std::optional<WorkersState> LoaderCore::workers_state() const {
  if (!workers_ || !workers_of_pass_ || workers_of_pass_->has_given_up()) return workers_;
  workers_of_pass_->finish();
  return WorkersState{.base_seed = workers_->base_seed, .generators = workers_of_pass_->generator_states()};
}

void LoaderCore::keep_seed(std::int64_t base_seed) {
  if (!options_.persistent_workers || (workers_ && workers_->base_seed == base_seed)) return;
  workers_ = WorkersState{.base_seed = base_seed};
}

std::optional<EpochPosition> LoaderCore::next_resume_position() {
  check_state(!*is_read_,
              "DataLoader: a pass over this loader, or over one that shares its dataset and sampler, is already open; "
              "create a separate loader for a nested loop");
  finish_workers();
  renew_steps();
  return loaded_;
}

// Persistent workers finish what a loop that an exception left has queued, before the dataset's epoch changes. A thread
// that a time-out left behind may still read a stream, which only one thread may.
void LoaderCore::finish_workers() {
  if (!workers_of_pass_) return;
  if (!workers_of_pass_->has_given_up()) {
    workers_of_pass_->finish();
    return;
  }
  check_state(
      !is_stream() && !options_.persistent_workers,
      "DataLoader: a worker still reads for a loop that ended with a time-out; create a new dataset and loader");
  workers_of_pass_.reset();
}

// The pass owns the position from here on, so stored positions are dropped.
void LoaderCore::open(const PassCore& pass) {
  loaded_.reset();
  left_.reset();
  open_pass_ = &pass;
  *is_read_ = true;
}

// A pass that read nothing returns its position, so that an exception between load_state_dict and the first
// batch does not lose it. Only a pass that was read to its end advances the epoch.
void LoaderCore::close(PassOutcome outcome) {
  open_pass_ = nullptr;
  *is_read_ = false;
  switch (outcome.end) {
    case PassOutcome::kNothingRead: loaded_ = std::move(outcome.place); break;
    case PassOutcome::kLeft: left_ = std::move(outcome.place); break;
    case PassOutcome::kFinished: iteration_ += outcome.any_batch || other_ranks_may_have_batches() ? 1 : 0; break;
  }
}

// Without even_batches a rank may get no batch at all. It must still advance its epoch with the others, or the
// ranks would shuffle differently.
bool LoaderCore::other_ranks_may_have_batches() const {
  const bool ranks_differ = is_prepared() && !is_dispatched() && !even_batches() && shard_.data_parallel.size > 1;
  return ranks_differ && (!sampler_ || reading().num_samples > 0);
}

}  // namespace accel
