// One pass over a loader. The order of the calls in the constructor and in start() is the order in which
// Accelerate's and torch's __iter__ draw random numbers; a draw that moves changes the data of all later epochs.
#include "reference/data/pass_core.hpp"

#include <limits>
#include <utility>

#include "reference/rank_local/random.hpp"

namespace accel {

// open() comes last, because a constructor that throws runs no destructor, and the loader would stay marked as
// open.
PassCore::PassCore(LoaderCore& core, std::int64_t skip_batches)
    : core_(core), start_(core.position().start()), taken_(core.next_resume_position()) {
  if (taken_) {
    state_ = taken_->pass;
    order_ = taken_->order;
  }
  const auto num_skipped = units_of(skip_batches);
  // If a position cannot be computed, the skipped steps are read and discarded instead.
  position_ = start_.num_read + (core_.can_seek() ? num_skipped : 0);
  num_to_discard_ = core_.can_seek() ? 0 : skip_batches;
  if (core_.is_prepared()) activate(start_.num_read + num_skipped);
  core_.open(*this, num_skipped);
}

// Reached without finish() when the loop is left early.
PassCore::~PassCore() {
  if (!std::exchange(is_open_, false)) return;
  if (has_handed_out_) taken_ = EpochPosition{.order = std::move(order_), .pass = std::move(state_)};
  core_.leave_pass(std::move(taken_));
  deactivate();
}

// The limit keeps "skip everything" from overflowing.
std::int64_t PassCore::units_of(std::int64_t num_batches) const {
  const auto units = core_.units_per_step();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
  return num_batches > (kMost - start_.num_read) / units ? kMost - start_.num_read : num_batches * units;
}

// Publishes the pass as the rank's active loader. Source: accelerate/data_loader.py, DataLoaderStateMixin.begin.
void PassCore::activate(std::int64_t num_read) {
  core_.begin_epoch(is_resumed());
  if (const auto remainder = core_.remainder_after(num_read)) active_.remainder = *remainder;
  active_.fills_up = core_.is_dispatched() || core_.reading().even_batches;
  active_.batch_size = core_.batch_size_of_rank();
  // Last, because the pointer must be removed again, and nothing after it may throw.
  core_.context().gradient_state.add(&active_);
}

void PassCore::start() {
  if (is_resumed()) {
    core_.keep_seed(state_.base_seed);
    restore_order();
    return;
  }
  if (const auto workers = core_.workers_state()) {
    state_.base_seed = workers->base_seed;
    state_.worker_starts = workers->generators;
  } else {
    // Source: accelerate/data_loader.py, DataLoaderDispatcher: its base iterator uses the default generator.
    const auto& own = core_.options().generator;
    state_.base_seed = draw_int64(own && !core_.is_dispatched() ? *own : default_generator());
  }
  core_.keep_seed(state_.base_seed);
  state_.random_state = default_generator().get_state();
  order_ = core_.order();
  core_.draw_as_reader();
}

// A pass that starts inside the epoch has not read the samples that pad its end, so they must be read separately.
bool PassCore::needs_start() const {
  const bool may_fill_up =
      !core_.options().drop_last && core_.is_prepared() && (core_.data_parallel().size > 1 || core_.full_rows() > 0);
  return position_ > 0 && may_fill_up;
}

detail::ReadersOptions PassCore::readers() {
  auto readers = readers_of_start();
  readers.prefetch_factor = core_.options().prefetch_factor;
  readers.kept = &core_.workers_of_pass();
  readers.persistent = core_.options().persistent_workers;
  const auto num_readers = static_cast<std::size_t>(readers.num_workers);
  if (state_.readers.size() != num_readers) {  // with another number of workers all start from their seeds
    state_.readers.assign(num_readers, {});
    state_.next_reader = 0;
  }
  for (const auto& reader : state_.readers) readers.generators.push_back(reader.generator);
  readers.next = static_cast<int>(state_.next_reader);
  return readers;
}

// A prefetch factor of 1, because only the first steps are read.
detail::ReadersOptions PassCore::readers_of_start() const {
  return {.num_workers = core_.num_readers(),
          .prefetch_factor = 1,
          .base_seed = static_cast<std::uint64_t>(state_.base_seed),
          .starts = state_.worker_starts.size() == static_cast<std::size_t>(core_.num_readers())
                        ? state_.worker_starts
                        : std::vector<at::Tensor>(),
          .workers = {.init = core_.options().worker_init_fn, .timeout = core_.options().timeout}};
}

// Called when a batch is handed out, not when it was read: prefetched batches must not be part of the state.
void PassCore::count(const std::vector<detail::ReaderMark>& marks) {
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

// end_of_dataloader is set before the last batch is handed out, because the optimizer must step on that batch
// even if the accumulation window is incomplete.
void PassCore::count_step(const Step& step) {
  has_handed_out_ = true;
  core_.hand_out(core_.units_per_step(), step.is_last);
  active_.num_rows = step.num_rows;
  if (core_.is_prepared()) active_.batch = ++core_.context().gradient_state.num_batches;
  if (!step.is_last) return;
  active_.end_of_dataloader = true;
  if (!core_.options().drop_last) active_.remainder = step.remainder;
}

// Takes effect once: another pass may be open when the destructor runs.
void PassCore::finish(bool any_batch) {
  if (!std::exchange(is_open_, false)) return;
  core_.end_pass(any_batch);
  deactivate();
}

void PassCore::deactivate() {
  if (core_.is_prepared()) core_.context().gradient_state.remove(&active_);
}

}  // namespace accel
