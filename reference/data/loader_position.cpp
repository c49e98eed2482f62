// Note [End of a pass]
// A pass ends for a rank when its loop asks for a batch after the last one. A rank with one batch more than others must
// not be able to stop between its last batch and that question: the others have ended the pass by then, and after a
// resume they would start the next epoch while this rank continues the old one. Its pass therefore ends with its last
// batch. In reverse, a rank that leaves its loop at its last batch while others get one more has not ended the pass,
// because the others have not. Accelerate ends a pass only with the question, so ranks disagree after a break.
// Ranks that read separate parts do not know when the others end. There a pass that was left counts as an epoch like
// one that ended, and a load compares the positions of all ranks.
#include "reference/data/loader_position.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel {

// This rank has read all its batches, and no rank gets another one in this pass, or only others do.
bool LoaderPosition::is_over() const {
  return stage_ == Stage::kLoadedOver || stage_ == Stage::kResumedOver || stage_ == Stage::kOver;
}

LoaderPosition::Start LoaderPosition::start() const {
  if (stage_ != Stage::kLoaded && stage_ != Stage::kLoadedOver) return {.epoch = epoch_};
  return {.epoch = epoch_, .num_read = num_read_, .continues = true, .nothing_left = is_over()};
}

LoaderPosition::Saved LoaderPosition::save() const {
  if (stage_ == Stage::kBetween) return {.epoch = epoch_};
  if (is_over()) return {.epoch = epoch_ + 1};
  const bool was_counted = stage_ == Stage::kLeft && is_independent_;
  return {.epoch = epoch_ - (was_counted ? 1 : 0), .num_read = num_read_};
}

void LoaderPosition::begin(const Begin& options) {
  ensure(!is_open(), "LoaderPosition: a pass begins inside another one");
  const auto from = start();
  stage_ = from.nothing_left ? Stage::kResumedOver : from.continues ? Stage::kResumed : Stage::kStarted;
  begin_ = from.num_read;
  num_read_ = from.num_read + options.num_skipped;
  is_independent_ = options.ranks_are_independent;
}

void LoaderPosition::hand_out(std::int64_t num_units, std::optional<LastStep> last) {
  ensure(is_open() && !is_over(), "LoaderPosition: a batch is handed out outside of a pass");
  num_read_ += num_units;
  stage_ = last == LastStep::kOthersEnded ? Stage::kOver : Stage::kReading;
}

void LoaderPosition::end(bool counts_as_epoch) {
  ensure(is_open(), "LoaderPosition: a pass ends that has not begun");
  if (counts_as_epoch) ++epoch_;
  stage_ = Stage::kBetween;
}

void LoaderPosition::leave() {
  ensure(is_open(), "LoaderPosition: a pass is left that has not begun");
  if (stage_ == Stage::kOver) {
    end();
  } else if (stage_ == Stage::kReading) {
    stage_ = Stage::kLeft;
    if (is_independent_) ++epoch_;
  } else {
    stage_ = stage_ == Stage::kResumed       ? Stage::kLoaded
             : stage_ == Stage::kResumedOver ? Stage::kLoadedOver
                                             : Stage::kBetween;
    num_read_ = begin_;
  }
}

void LoaderPosition::load(const Saved& saved) {
  ensure(!is_open(), "LoaderPosition: a position is loaded inside a pass");
  stage_ = saved.num_read ? Stage::kLoaded : Stage::kBetween;
  epoch_ = saved.epoch;
  num_read_ = saved.num_read.value_or(0);
}

// A rank that saved after its end cannot tell whether the others had ended too; their states can.
void LoaderPosition::agree(const std::vector<Saved>& of_ranks) {
  const bool others_continue =
      stage_ == Stage::kBetween && std::any_of(of_ranks.begin(), of_ranks.end(), [&](const Saved& other) {
        return other.num_read && other.epoch + 1 == epoch_;
      });
  if (!others_continue) return;
  stage_ = Stage::kLoadedOver;
  --epoch_;
}

// Inside a loop only the epoch of the next passes changes.
void LoaderPosition::set_epoch(std::int64_t epoch) {
  const bool is_loaded = start().continues;
  if (stage_ == Stage::kLeft || (is_loaded && epoch != epoch_)) stage_ = Stage::kBetween;
  epoch_ = epoch;
}

}  // namespace accel
