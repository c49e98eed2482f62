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

namespace accel {

LoaderPosition::Start LoaderPosition::start() const {
  if (stage_ != Stage::kLoaded) return {.epoch = epoch_};
  return {.epoch = epoch_, .num_read = num_read_, .continues = true, .nothing_left = is_over_};
}

LoaderPosition::Saved LoaderPosition::save() const {
  if (stage_ == Stage::kBetween) return {.epoch = epoch_};
  if (is_over_) return {.epoch = epoch_ + 1};
  const bool was_counted = stage_ == Stage::kLeft && is_independent_;
  return {.epoch = epoch_ - (was_counted ? 1 : 0), .num_read = num_read_};
}

void LoaderPosition::begin(const Begin& options) {
  const auto from = start();
  stage_ = Stage::kOpen;
  begin_ = from.num_read;
  num_read_ = from.num_read + options.num_skipped;
  is_over_ = from.nothing_left;
  continues_ = from.continues;
  is_independent_ = options.ranks_are_independent;
  has_moved_ = false;
}

void LoaderPosition::hand_out(std::int64_t num_units, std::optional<LastStep> last) {
  has_moved_ = true;
  num_read_ += num_units;
  is_over_ = last == LastStep::kOthersEnded;
}

void LoaderPosition::end(bool counts_as_epoch) {
  if (counts_as_epoch) ++epoch_;
  stage_ = Stage::kBetween;
}

void LoaderPosition::leave() {
  if (!has_moved_) {
    stage_ = continues_ ? Stage::kLoaded : Stage::kBetween;
    num_read_ = begin_;
  } else if (is_over_) {
    end();
  } else {
    stage_ = Stage::kLeft;
    if (is_independent_) ++epoch_;
  }
}

void LoaderPosition::load(const Saved& saved) {
  stage_ = saved.num_read ? Stage::kLoaded : Stage::kBetween;
  epoch_ = saved.epoch;
  num_read_ = saved.num_read.value_or(0);
  is_over_ = false;
}

// A rank that saved after its end cannot tell whether the others had ended too; their states can.
void LoaderPosition::agree(const std::vector<Saved>& of_ranks) {
  const bool others_continue =
      stage_ == Stage::kBetween && std::any_of(of_ranks.begin(), of_ranks.end(), [&](const Saved& other) {
        return other.num_read && other.epoch + 1 == epoch_;
      });
  if (!others_continue) return;
  stage_ = Stage::kLoaded;
  --epoch_;
  is_over_ = true;
}

// Inside a loop only the epoch of the next passes changes.
void LoaderPosition::set_epoch(std::int64_t epoch) {
  if (stage_ == Stage::kLeft || (stage_ == Stage::kLoaded && epoch != epoch_)) stage_ = Stage::kBetween;
  epoch_ = epoch;
}

}  // namespace accel
