// Saving and loading the state of a loader.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <exception>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/data/loader.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/pass.hpp"

namespace accel::detail {

std::string Loader::source_name() const {
  if (sampler_) return "samples";
  if (steps_) return "batches";
  return reads_own_parts() ? "shards" : "stream";
}

// See Note [Position of a loader].
LoaderState Loader::state() const {
  LoaderState state{.source = source_name(),
                    .num_samples = source_.size,
                    .num_shards = source_.num_shards,
                    .num_workers = options_.num_workers,
                    .epoch = position().save().epoch};
  if (is_prepared()) {
    state.num_processes = shard_.data_parallel.size;
    state.process_index = shard_.data_parallel.rank;
  }
  if (options_.generator) state.generator = options_.generator->get_state();
  if (position().is_inside()) {
    const auto* const pass = open_pass();
    const auto& saved = pass != nullptr ? pass->saved() : *saved_pass_;
    state.order = saved.order;
    state.pass = saved.record;
    state.pass->num_read = position().num_read();
  } else {
    state.order = order();
  }
  if (!is_being_read() || !position().is_inside()) state.workers = workers_state();
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

void Loader::load_state(const LoaderState& state) {
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
  saved_pass_ = resumed_pass(fit, state);
  if (workers_ && !workers_->has_given_up()) workers_->finish();
  workers_.reset();
  workers_state_ = options_.persistent_workers ? workers_after(state) : std::nullopt;
  if (workers_state_ && !fit.has_ranks_of(state)) workers_state_->generators.clear();  // they are of rank 0
}

// A failure travels in the same all-gather, so that no rank waits for one that could not load its state.
void Loader::agree_on_position(bool is_loaded) {
  if (!ranks_are_independent()) return;
  constexpr std::int64_t kNotLoaded = -2, kStartOfEpoch = -1;
  const auto own = position().save();
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

void Loader::load_state_dict(const Value& value) {
  const auto before = state();
  const auto position = position_;
  const auto saved_pass = saved_pass_;
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
    saved_pass_ = saved_pass;
    throw;
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace accel::detail
