// One pass over a loader. The order of the calls in the constructor and in start() is the order in which
// Accelerate's and torch's __iter__ draw random numbers; a draw that moves changes the data of all later epochs.
#include "reference/data/pass.hpp"

#include <exception>
#include <limits>
#include <utility>

#include "reference/rank_local/random.hpp"

namespace accel::detail {

// The loader learns about the pass last, because a constructor that throws runs no destructor, and the loader would
// stay marked as being read.
Pass::Pass(std::shared_ptr<Loader> loader, std::int64_t skip_batches)
    : loader_(std::move(loader)),
      position_(loader_->position()),
      start_(position_.start()),
      saved_(loader_->next_pass().value_or(SavedPass())),
      observer_(current_program_observer()),
      num_exceptions_(std::uncaught_exceptions()) {
  if (observer_) observer_->begin_pass(loader_, loader_->facts(), start_.num_read > 0 || skip_batches > 0);
  const auto num_skipped = units_of(skip_batches);
  // If a position cannot be computed, the skipped steps are read and discarded instead.
  num_to_seek_ = start_.num_read + (loader_->can_seek() ? num_skipped : 0);
  num_to_discard_ = loader_->can_seek() ? 0 : skip_batches;
  if (loader_->is_prepared()) activate(start_.num_read + num_skipped);
  position_.begin({.num_skipped = num_skipped, .ranks_are_independent = loader_->ranks_are_independent()});
  *loader_->open_pass_ = this;
}

Pass::~Pass() {
  if (!is_open()) return;
  close_streams();
  const bool replaces_loaded = position_.has_handed_out();
  position_.leave();
  close(replaces_loaded ? std::optional(std::move(saved_)) : std::nullopt);
}

// The limit keeps "skip everything" from overflowing.
std::int64_t Pass::units_of(std::int64_t num_batches) const {
  const auto units = loader_->units_per_step();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max() / 2;
  return num_batches > (kMost - start_.num_read) / units ? kMost - start_.num_read : num_batches * units;
}

// Publishes the pass as the rank's active loader. Source: accelerate/data_loader.py, DataLoaderStateMixin.begin.
void Pass::activate(std::int64_t num_read) {
  loader_->begin_epoch(is_resumed());
  if (const auto remainder = loader_->remainder_after(num_read)) active_.remainder = *remainder;
  active_.fills_up = loader_->is_dispatched() || loader_->reading().even_batches;
  active_.batch_size = loader_->batch_size_of_rank();
  // Last, because the pointer must be removed again, and nothing after it may throw.
  loader_->context().gradient_state.add(&active_);
}

void Pass::start() {
  if (is_resumed()) {
    loader_->keep_seed(saved_.record.base_seed);
    restore_order();
    return;
  }
  if (const auto workers = loader_->workers_state()) {
    saved_.record.base_seed = workers->base_seed;
    saved_.record.worker_starts = workers->generators;
  } else {
    // Source: accelerate/data_loader.py, DataLoaderDispatcher: its base iterator uses the default generator.
    const auto& own = loader_->options().generator;
    saved_.record.base_seed = draw_int64(own && !loader_->is_dispatched() ? *own : default_generator());
  }
  loader_->keep_seed(saved_.record.base_seed);
  saved_.record.random_state = default_generator().get_state();
  saved_.order = loader_->order();
  loader_->draw_as_reader();
}

void Pass::read(std::unique_ptr<PassBatches> batches) {
  batches_ = std::move(batches);
  for (; num_to_discard_ > 0; --num_to_discard_) {
    const auto* const discarded = batches_->next();
    if (discarded == nullptr) break;
    count(discarded->marks);
  }
  advance();
}

void Pass::advance() {
  if (!is_open()) return;
  const auto* const batch = batches_->next();
  if (batch == nullptr) {
    end();
    return;
  }
  if (loader_->moves_batches()) {
    batches_->map([&](const at::Tensor& tensor) { return loader_->begin_move(tensor); });
    loader_->finish_moves();
  }
  if (observer_) observe(*batch);
  hand_out(*batch);
}

void Pass::observe(const BatchRecord& batch) {
  ProgramObserver::ReadBatch read{.indices = batch.indices, .drawn_from = batch.drawn_from};
  if (!batch.marks.empty() && batch.marks.front().reader >= 0)
    read.reader = static_cast<int>(batch.marks.front().reader);
  batches_->map([&](const at::Tensor& tensor) {
    read.tensors.push_back(tensor);
    return tensor;
  });
  observer_->read_batch(loader_, read);
}

// end_of_dataloader is set before the last batch is handed out, because the optimizer must step on that batch
// even if the accumulation window is incomplete.
void Pass::hand_out(const BatchRecord& batch) {
  count(batch.marks);
  position_.hand_out(loader_->units_per_step(), batch.is_last ? std::optional(loader_->last_step()) : std::nullopt);
  active_.num_rows = batch.num_rows;
  active_.real_rows = batch.real_rows;
  if (loader_->is_prepared()) active_.batch = ++loader_->context().gradient_state.num_batches;
  if (!batch.is_last) return;
  active_.end_of_dataloader = true;
  if (!loader_->options().drop_last) active_.remainder = batch.remainder;
}

// Called when a batch is handed out, not when it was read: prefetched batches must not be part of the state.
void Pass::count(const std::vector<ReaderMark>& marks) {
  auto& record = saved_.record;
  for (const auto& mark : marks) {
    if (mark.reader == kRankThread) {
      record.ahead_state = mark.generator;
    } else if (mark.reader == kLeftOver) {
      record.num_left_over += mark.num_samples;
    } else {
      auto& reader = record.readers.at(mark.reader);
      reader.num_samples += mark.num_samples;
      reader.generator = mark.generator;
      record.next_reader = (mark.reader + 1) % static_cast<std::int64_t>(record.readers.size());
    }
  }
}

void Pass::end() {
  if (observer_) observer_->end_pass(loader_);
  close_streams();
  const bool any_batch = position_.num_read() > 0 || has_nothing_left();
  position_.end(/*counts_as_epoch=*/any_batch || loader_->other_ranks_may_have_batches());
  close(std::nullopt);
}

// Their workers are shared with the loader, which decides what becomes of them.
void Pass::close_streams() {
  batches_.reset();
  loader_->release_workers(/*by_exception=*/std::uncaught_exceptions() != num_exceptions_);
}

void Pass::close(std::optional<SavedPass> left) {
  loader_->close_pass(position_, std::move(left));
  if (loader_->is_prepared()) loader_->context().gradient_state.remove(&active_);
}

// --- for streams -----------------------------------------------------------------------------------------------------

void Pass::restore_order() { loader_->load_order(saved_.order); }

// A pass that starts inside the epoch has not read the samples that pad its end, so they must be read separately.
bool Pass::needs_start() const {
  const bool may_fill_up = !loader_->options().drop_last && loader_->is_prepared() &&
                           (loader_->data_parallel().size > 1 || loader_->full_rows() > 0);
  return num_to_seek_ > 0 && may_fill_up;
}

ReadersOptions Pass::readers() {
  auto readers = readers_of_start();
  readers.prefetch_factor = loader_->options().prefetch_factor;
  readers.kept = &loader_->workers_;
  readers.persistent = loader_->options().persistent_workers;
  const auto num_readers = static_cast<std::size_t>(readers.num_workers);
  if (saved_.record.readers.size() != num_readers) {  // with another number of workers all start from their seeds
    saved_.record.readers.assign(num_readers, {});
    saved_.record.next_reader = 0;
  }
  for (const auto& reader : saved_.record.readers) readers.generators.push_back(reader.generator);
  readers.next = static_cast<int>(saved_.record.next_reader);
  return readers;
}

// A prefetch factor of 1, because only the first steps are read.
ReadersOptions Pass::readers_of_start() const {
  return {.num_workers = loader_->num_readers(),
          .prefetch_factor = 1,
          .base_seed = static_cast<std::uint64_t>(saved_.record.base_seed),
          .starts = saved_.record.worker_starts.size() == static_cast<std::size_t>(loader_->num_readers())
                        ? saved_.record.worker_starts
                        : std::vector<at::Tensor>(),
          .workers = {.init = loader_->options().worker_init_fn, .timeout = loader_->options().timeout},
          .is_observed = is_observed()};
}

}  // namespace accel::detail
