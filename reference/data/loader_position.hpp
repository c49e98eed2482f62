#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/data/samplers/last_step.hpp"

/// Where a rank is in the epochs of a loader, as a pure state machine: no data, no random numbers, no communication.
///
///     LoaderPosition position;
///     position.begin({.num_skipped = 0});
///     position.hand_out(/*units=*/8);
///     position.leave();                           // break
///     const auto saved = position.save();         // {.epoch = 0, .num_read = 8}
///     LoaderPosition resumed;
///     resumed.load(saved);
///     resumed.start();                            // {.epoch = 0, .num_read = 8, .continues = true}
///
/// The only statement of what a loop, a save and a load do to the position; Pass and Loader follow it. Stages, and what
/// each event leads to; an event without an entry is an InternalError:
///
/// | stage | meaning | begin | hand_out | end | leave |
/// |---|---|---|---|---|---|
/// | kBetween | no pass is open; the next one starts its epoch | kStarted | | | |
/// | kLoaded | no pass is open; the next one continues the loaded one | kResumed | | | |
/// | kLoadedOver | the same, but only other ranks have batches left | kResumedOver | | | |
/// | kLeft | a loop was left, and its place can be saved; the next pass starts its epoch | kStarted | | | |
/// | kStarted | open, nothing is handed out | | kReading, kOver | kBetween | kBetween |
/// | kResumed | open, nothing is handed out since the loaded place | | kReading, kOver | kBetween | kLoaded |
/// | kResumedOver | open, only other ranks have batches left | | | kBetween | kLoadedOver |
/// | kReading | open, a batch is handed out | | kReading, kOver | kBetween | kLeft |
/// | kOver | open, the pass ended on all ranks with the batch handed out last | | | kBetween | kBetween |
///
/// `load` leads from a stage without an open pass to kLoaded or kBetween, `agree` from kBetween to kLoadedOver if other
/// ranks continue. `set_epoch` leads from kLeft, and for another epoch from kLoaded and kLoadedOver, to kBetween; other
/// stages remain.
///
/// Ranks may get different numbers of batches. Each event therefore leads to a state that means the same on every rank:
/// after it all ranks continue one pass, or all start the same epoch. See Note [End of a pass].
/// Thread rule: a value.
namespace accel {

class LoaderPosition {
 public:
  /// What a saved state contains.
  struct Saved {
    std::int64_t epoch = 0;
    std::optional<std::int64_t> num_read = {};  ///< units of the epoch that are handed out; nullopt: its start
    friend bool operator==(const Saved&, const Saved&) = default;
  };
  /// Where and how the next pass starts.
  struct Start {
    std::int64_t epoch = 0, num_read = 0;
    bool continues = false;     ///< a loaded pass, which draws and synchronizes nothing
    bool nothing_left = false;  ///< this rank has read all its batches, but other ranks continue the pass
    friend bool operator==(const Start&, const Start&) = default;
  };
  struct Begin {
    std::int64_t num_skipped = 0;  ///< units that count as read
    /// Every rank reads separate parts, and none knows when the others end. Every pass then counts as an epoch.
    bool ranks_are_independent = false;
  };

  /// The epoch of the open pass, or of the next one.
  [[nodiscard]] std::int64_t epoch() const { return epoch_; }
  [[nodiscard]] bool is_open() const { return stage_ >= Stage::kStarted; }
  /// True if the open pass has handed out a batch.
  [[nodiscard]] bool has_handed_out() const { return stage_ >= Stage::kReading; }
  /// Units of the open, left or loaded pass that are handed out or skipped.
  [[nodiscard]] std::int64_t num_read() const { return num_read_; }
  /// True if the state continues a pass, so that the order and the random numbers of that pass are part of it.
  [[nodiscard]] bool is_inside() const { return save().num_read.has_value(); }
  [[nodiscard]] Start start() const;
  [[nodiscard]] Saved save() const;

  /// A pass begins where `start` returned.
  void begin(const Begin& options);
  /// A batch is handed out. `last`: it is this rank's last one.
  void hand_out(std::int64_t num_units, std::optional<LastStep> last = {});
  /// The loop asked for a batch after the last one. `counts_as_epoch`: some rank had a batch.
  void end(bool counts_as_epoch = true);
  /// The loop was left by break, return or an exception. If nothing was handed out, the pass has not begun.
  void leave();
  void load(const Saved& saved);
  /// Replaces what was loaded by what all ranks together continue. `of_ranks`: what each of them loaded. Only needed if
  /// ranks are independent.
  void agree(const std::vector<Saved>& of_ranks);
  /// Sets the epoch of the next pass. A loaded place remains if it is of this epoch.
  void set_epoch(std::int64_t epoch);

 private:
  // In this order: no pass is open, nothing is handed out, a batch is handed out.
  enum class Stage { kBetween, kLoaded, kLoadedOver, kLeft, kStarted, kResumed, kResumedOver, kReading, kOver };

  [[nodiscard]] bool is_over() const;

  Stage stage_ = Stage::kBetween;
  std::int64_t epoch_ = 0;
  std::int64_t num_read_ = 0;
  std::int64_t begin_ = 0;       // num_read_ before the open pass skipped anything
  bool is_independent_ = false;  // of the open or left pass: see Begin
};

}  // namespace accel
