#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/loader.hpp"
#include "reference/state/gradient_state.hpp"

namespace accel::detail {

/// One pass over a loader: its position, the order and the random numbers of its epoch, what its readers have read, and
/// its streams. The loader takes over the position when the pass is closed: at the end, or when the loop is left by
/// break, return or exception. While the pass is open, a prepared loader is the rank's active loader. LoaderPosition
/// has the stages of a pass.
///
///     Pass pass(loader, /*skip_batches=*/0);
///     pass.start();                      // draws the seed and records the order
///     pass.read(open_streams(pass));     // hands out the first batch
///     while (pass.is_open()) pass.advance();
///
/// Does not depend on the type of a sample. Thread rule: the rank's thread.
class Pass {
 public:
  /// Synchronizes generators and sets the sampler's epoch. Throws StateError if another pass is open, because both
  /// would share one position.
  Pass(std::shared_ptr<Loader> loader, std::int64_t skip_batches);
  /// Closes a pass that is still open, as left.
  ~Pass();
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  /// Draws the seed of the workers, unless persistent ones continue; worker w is seeded with seed + w. A resumed pass
  /// draws nothing and uses its saved seed and order.
  void start();
  /// Discards the steps of a skip that cannot be computed, and hands out the first batch.
  void read(std::unique_ptr<PassBatches> batches);
  /// Hands out the next batch, or ends the pass.
  void advance();
  /// Records a batch that is about to be handed out.
  void hand_out(const BatchRecord& batch);
  /// Closes the pass, which was read to its end. It counts as an epoch if it started inside its epoch, or if it or
  /// another rank had a batch.
  void end();
  [[nodiscard]] bool is_open() const { return position_.is_open(); }

  // --- for streams ---

  [[nodiscard]] bool is_resumed() const { return start_.continues; }
  /// True if this rank has no batch left in a pass that other ranks continue. It then draws and reads nothing.
  [[nodiscard]] bool has_nothing_left() const { return start_.nothing_left; }
  /// Number of units of the epoch that the streams skip without reading them.
  [[nodiscard]] std::int64_t num_to_seek() const { return num_to_seek_; }
  /// True if the end of the pass may be padded with its start, which is skipped.
  [[nodiscard]] bool needs_start() const;
  /// Resets the sampler to its state at the start of the pass.
  void restore_order();
  /// Options of the prefetching threads, which continue from their saved states.
  ReadersOptions readers();
  /// Options of the prefetching threads as they were at the start of the pass, to read its first steps again.
  [[nodiscard]] ReadersOptions readers_of_start() const;
  [[nodiscard]] const PassRecord& record() const { return saved_.record; }

  /// The batches that are handed out, for a ProgramObserver.
  [[nodiscard]] bool is_observed() const { return observer_ != nullptr; }

  // --- for the loader ---

  [[nodiscard]] bool belongs_to(const Loader& loader) const { return loader_.get() == &loader; }
  [[nodiscard]] const LoaderPosition& position() const { return position_; }
  [[nodiscard]] const SavedPass& saved() const { return saved_; }
  /// Sets the epoch of the next pass.
  void set_epoch(std::int64_t epoch) { position_.set_epoch(epoch); }

 private:
  [[nodiscard]] std::int64_t units_of(std::int64_t num_batches) const;
  void activate(std::int64_t num_read);
  void count(const std::vector<ReaderMark>& marks);
  void observe(const BatchRecord& batch);
  void close_streams();
  void close(std::optional<SavedPass> left);

  std::shared_ptr<Loader> loader_;
  LoaderPosition position_;
  LoaderPosition::Start start_;
  SavedPass saved_;  // num_read is in position_
  std::int64_t num_to_seek_ = 0, num_to_discard_ = 0;
  ActiveLoader active_;
  std::unique_ptr<PassBatches> batches_;       // null when the pass is closed
  std::shared_ptr<ProgramObserver> observer_;  // null: nobody observes the pass
  int num_exceptions_;                         // in flight when the pass began
};

}  // namespace accel::detail
