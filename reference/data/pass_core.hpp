#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/state/gradient_state.hpp"

/// What all passes share that does not depend on the type of a sample. Thread rule: the rank's thread.
namespace accel {

/// One pass over a loader. It owns the place in the epoch while it is open; the loader only reads it, and takes it over
/// when the pass is closed. While it is open, a prepared loader is the rank's active one; leaving the loop early, by
/// break, return or exception, closes the pass.
class PassCore {
 public:
  /// Synchronises generators, and sets the sampler's epoch. Throws StateError if another pass is open: the two would
  /// share one place.
  PassCore(LoaderCore& core, std::int64_t skip_batches);
  ~PassCore();
  PassCore(const PassCore&) = delete;
  PassCore& operator=(const PassCore&) = delete;

  /// Draws the seed of this pass's workers: worker w has a generator seeded with it plus w. A resumed pass draws
  /// nothing: its seed and order are those with which it began.
  void start();
  [[nodiscard]] bool is_resumed() const { return taken_.has_value(); }
  /// Units of the epoch that are passed over without being read.
  [[nodiscard]] std::int64_t position() const { return position_; }
  /// Steps to pass over by reading them, where a place in a stream is not known beforehand.
  [[nodiscard]] std::int64_t num_to_discard() const { return num_to_discard_; }
  [[nodiscard]] bool begins_inside() const { return state_.num_read > 0; }
  /// The end of the pass may be filled up with its start, which is passed over.
  [[nodiscard]] bool needs_start() const;
  [[nodiscard]] const PassState& state() const { return state_; }
  /// Of the sampler, when the pass began.
  [[nodiscard]] const Value& order() const { return order_; }
  /// Sets the sampler back to when the pass began.
  void restore_order() { core_.load_order(order_); }
  /// The threads that read ahead, from where they were.
  detail::ReadersOptions readers();
  /// The same as they were when the pass began, to read its start again.
  [[nodiscard]] detail::ReadersOptions readers_of_start() const;
  /// A batch is about to be handed out.
  template <typename Batch>
  void hand_out(const detail::Issued<Batch>& issued) {
    count(issued.marks);
    count_step({.num_rows = issued.num_rows, .is_last = issued.is_last, .remainder = issued.remainder});
    active_.real_rows = issued.real_rows;
  }
  /// The pass has been read to its end. `any_batch`: it had one.
  void finish(bool any_batch);
  /// Adds what has been read by whom.
  void count(const std::vector<detail::ReaderMark>& marks);

 private:
  struct Step {
    std::int64_t num_rows = 0;
    bool is_last = false;
    std::int64_t remainder = 0;
  };
  void skip(std::int64_t num_batches);
  void activate();
  void count_step(const Step& step);
  void close(PassOutcome outcome);

  LoaderCore& core_;
  bool is_open_ = true, has_handed_out_ = false;
  std::optional<BegunEpoch> taken_;  // where it resumes
  PassState state_;
  std::int64_t position_ = 0, num_to_discard_ = 0;
  Value order_;  // at the start of the pass
  ActiveLoader active_;
};

}  // namespace accel
