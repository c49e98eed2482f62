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
  [[nodiscard]] bool is_open() const { return stage_ == Stage::kOpen; }
  /// Units of the open, left or loaded pass that are handed out or skipped.
  [[nodiscard]] std::int64_t num_read() const { return num_read_; }
  /// True if the state continues a pass, so that the order and the random numbers of that pass are part of it.
  [[nodiscard]] bool is_inside() const { return save().num_read.has_value(); }
  [[nodiscard]] Start start() const;
  [[nodiscard]] Saved save() const;

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
  enum class Stage { kBetween, kLoaded, kOpen, kLeft };

  Stage stage_ = Stage::kBetween;
  std::int64_t epoch_ = 0;
  std::int64_t num_read_ = 0;
  bool is_over_ = false;                        // kLoaded and kOpen: this rank's part of the pass is over
  bool is_independent_ = false;                 // kOpen and kLeft
  bool continues_ = false, has_moved_ = false;  // kOpen
  std::int64_t begin_ = 0;                      // kOpen: num_read_ before anything was skipped
};

}  // namespace accel
