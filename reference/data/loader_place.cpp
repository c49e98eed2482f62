// The position of a loader: where it is between and inside passes, and its saved states.
//
// Note [Position of a loader]
// The position in an epoch is a number of units that all ranks together have been handed: samples, or batches of a
// user's batch sampler. It does not depend on the rank, the number of workers or the prefetch, so a state can be loaded
// with other values of all three. `position_` is the state machine that decides what each event means (see Note [End of
// a pass]); this class keeps the order and the random numbers that belong to its state. While a pass is open, PassCore
// has them. Between passes they are in `place_`, if the position is inside an epoch: a load that no pass has used yet,
// or a loop that was left, whose place serves only state_dict().
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/pass_core.hpp"

namespace accel {

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
                    .epoch = position_.save().epoch};
  if (is_prepared()) {
    state.num_processes = shard_.data_parallel.size;
    state.process_index = shard_.data_parallel.rank;
  }
  if (options_.generator) state.generator = options_.generator->get_state();
  if (!position_.is_inside()) {
    state.order = order();
  } else if (is_being_read()) {
    state.order = open_pass_->order();
    state.pass = open_pass_->state();
  } else {
    state.order = place_->order;
    state.pass = place_->pass;
  }
  if (state.pass) state.pass->num_read = position_.num_read();
  if (!is_being_read() || !position_.is_inside()) state.workers = workers_state();
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
  check_state(!is_being_read(),
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
        fmt::format("load_state_dict: the state does not match this loader: {}", listed(problems, "; ")));

  if (state.generator.defined() && options_.generator) options_.generator->set_state(state.generator);
  position_.load({.epoch = state.epoch, .num_read = state.pass ? std::optional(state.pass->num_read) : std::nullopt});
  place_ = resume_position_for(fit, state);
  if (workers_of_pass_ && !workers_of_pass_->has_given_up()) workers_of_pass_->finish();
  workers_of_pass_.reset();
  workers_ = options_.persistent_workers ? workers_after(state) : std::nullopt;
  if (workers_ && !fit.has_ranks_of(state)) workers_->generators.clear();  // they are of rank 0
}

// A failure travels in the same all-gather, so that no rank waits for one that could not load its state.
void LoaderCore::agree_on_position(bool is_loaded) {
  if (!ranks_are_independent()) return;
  constexpr std::int64_t kNotLoaded = -2, kStartOfEpoch = -1;
  const auto own = position_.save();
  auto message = at::empty({2}, at::kLong);
  auto* const field = message.mutable_data_ptr<std::int64_t>();
  field[0] = own.epoch;
  field[1] = is_loaded ? own.num_read.value_or(kStartOfEpoch) : kNotLoaded;
  const auto all = shard_.data_parallel.group.all_gather(message);
  const auto* const fields = all.const_data_ptr<std::int64_t>();
  std::vector<LoaderPosition::Saved> of_ranks;
  for (int rank = 0; rank < shard_.data_parallel.size; ++rank) {
    const auto epoch = fields[2 * rank], num_read = fields[2 * rank + 1];
    check_checkpoint(num_read != kNotLoaded, "load_state_dict: rank {} could not load its state; see its error", rank);
    of_ranks.push_back({.epoch = epoch, .num_read = num_read < 0 ? std::nullopt : std::optional(num_read)});
  }
  position_.agree(of_ranks);
}

void LoaderCore::load_state_dict(const Value& value) {
  const auto before = state();
  const auto position = position_;
  const auto place = place_;
  std::exception_ptr error;
  try {
    load_state(loader_state_of(value));
  } catch (...) {
    error = std::current_exception();
  }
  try {
    agree_on_position(/*is_loaded=*/!error);
  } catch (const CheckpointError&) {
    if (error) std::rethrow_exception(error);  // this rank's own error is more specific
    load_state(before);
    position_ = position;
    place_ = place;
    throw;
  }
  if (error) std::rethrow_exception(error);
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
  return position_.start().continues ? place_ : std::nullopt;
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

// The pass has the place from here on.
void LoaderCore::open(const PassCore& pass, std::int64_t num_skipped) {
  position_.begin({.num_skipped = num_skipped, .ranks_are_independent = ranks_are_independent()});
  place_.reset();
  open_pass_ = &pass;
  *is_read_ = true;
}

void LoaderCore::hand_out(std::int64_t num_units, bool is_last) {
  position_.hand_out(num_units, is_last ? std::optional(last_step()) : std::nullopt);
}

void LoaderCore::end_pass(bool any_batch) {
  position_.end(/*counts_as_epoch=*/any_batch || other_ranks_may_have_batches());
  release();
}

// A pass that read nothing returns its place, so that an exception between load_state_dict and the first batch does not
// lose it.
void LoaderCore::leave_pass(std::optional<EpochPosition> place) {
  position_.leave();
  if (position_.is_inside()) place_ = std::move(place);
  release();
}

void LoaderCore::release() {
  open_pass_ = nullptr;
  *is_read_ = false;
}

// Only the steps of a sampler or batch sampler can differ in number where ranks do not read separate parts.
LastStep LoaderCore::last_step() const {
  return steps_ && is_prepared() && !is_dispatched() ? steps_->last_step() : LastStep::kOfAllRanks;
}

// Without even_batches a rank may get no batch at all. It must still advance its epoch with the others, or the
// ranks would shuffle differently.
bool LoaderCore::other_ranks_may_have_batches() const {
  const bool ranks_differ = is_prepared() && !is_dispatched() && !even_batches() && shard_.data_parallel.size > 1;
  return ranks_differ && (!sampler_ || reading().num_samples > 0);
}

}  // namespace accel
