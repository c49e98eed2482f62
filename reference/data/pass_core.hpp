#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/state/gradient_state.hpp"

/// The part of a pass that does not depend on the type of a sample. Thread rule: the rank's thread.
namespace accel {

/// One pass over a loader. Has the order and the random numbers of the epoch while it is open; the loader takes them
/// over when the pass is closed. While the pass is open, a prepared loader is the rank's active loader. Leaving the
/// loop early, by break, return or exception, closes the pass.
class PassCore {
 public:
  /// Synchronizes generators and sets the sampler's epoch. Throws StateError if another pass is open, because both
  /// would share one position.
  PassCore(LoaderCore& core, std::int64_t skip_batches);
  ~PassCore();
  PassCore(const PassCore&) = delete;
  PassCore& operator=(const PassCore&) = delete;

  /// Draws the seed of the workers, unless persistent ones continue; worker w is seeded with seed + w. A resumed pass
  /// draws nothing and uses its saved seed and order.
  void start();
  [[nodiscard]] bool is_resumed() const { return start_.continues; }
  /// True if this rank has no batch left in a pass that other ranks continue. It then draws and reads nothing.
  [[nodiscard]] bool has_nothing_left() const { return start_.nothing_left; }
  /// Number of units of the epoch that are skipped without being read.
  [[nodiscard]] std::int64_t position() const { return position_; }
  /// Number of steps to read and discard, for streams whose positions cannot be computed.
  [[nodiscard]] std::int64_t num_to_discard() const { return num_to_discard_; }
  [[nodiscard]] bool begins_inside() const { return core_.position().num_read() > 0 || has_nothing_left(); }
  /// True if the end of the pass may be padded with its start, which is skipped.
  [[nodiscard]] bool needs_start() const;
  [[nodiscard]] const PassState& state() const { return state_; }
  /// State of the sampler at the start of the pass.
  [[nodiscard]] const Value& order() const { return order_; }
  /// Resets the sampler to its state at the start of the pass.
  void restore_order() { core_.load_order(order_); }
  /// Options of the prefetching threads, which continue from their saved states.
  detail::ReadersOptions readers();
  /// Options of the prefetching threads as they were at the start of the pass, to read its first steps again.
  [[nodiscard]] detail::ReadersOptions readers_of_start() const;
  /// Records a batch that is about to be handed out.
  template <typename Batch>
  void hand_out(const detail::LoadedBatch<Batch>& issued) {
    count(issued.marks);
    count_step({.num_rows = issued.num_rows, .is_last = issued.is_last, .remainder = issued.remainder});
    active_.real_rows = issued.real_rows;
  }
  /// Closes a pass that was read to its end. `any_batch`: it had at least one batch.
  void finish(bool any_batch);
  /// Adds the samples of a handed-out batch to the counts of their readers.
  void count(const std::vector<detail::ReaderMark>& marks);

 private:
  struct Step {
    std::int64_t num_rows = 0;
    bool is_last = false;
    std::int64_t remainder = 0;
  };
  [[nodiscard]] std::int64_t units_of(std::int64_t num_batches) const;
  void activate(std::int64_t num_read);
  void count_step(const Step& step);
  void deactivate();

  LoaderCore& core_;
  bool is_open_ = true, has_handed_out_ = false;
  LoaderPosition::Start start_;
  std::optional<EpochPosition> taken_;  // where the pass resumes
  PassState state_;
  std::int64_t position_ = 0, num_to_discard_ = 0;
  Value order_;  // at the start of the pass
  ActiveLoader active_;
};

}  // namespace accel
