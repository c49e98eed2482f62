// The position of a loader, explored completely: all sequences of up to 7 events, on up to 3 ranks with every
// combination of numbers of batches. A model that knows all ranks says what each rank must read and where all ranks
// must continue.
#include "reference/data/loader_position.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

using Saved = LoaderPosition::Saved;
using Read = std::pair<std::int64_t, std::int64_t>;  // epoch, number of the batch in it

constexpr std::int64_t kMost = 3;  // batches of a rank
constexpr std::size_t kRanks = 3;

// What the ranks read in one event. Arrays, because millions of states are copied.
using Reads = std::array<Read, kRanks>;
constexpr Read kNothing{-1, -1};
constexpr Reads kNoReads{kNothing, kNothing, kNothing};

// The ranks of a program. All ranks run the same statements: they begin a pass together, each asks for the next batch
// until its loop ends, and they leave a loop after the same number of batches.
struct Ranks {
  std::size_t count = 0;
  std::array<std::int64_t, kRanks> num_batches = {};
  std::int64_t most = 0, fewest = 0;
  bool are_independent = false;
  std::array<LoaderPosition, kRanks> positions = {};
  std::array<bool, kRanks> is_over = {};  // a loaded pass has nothing left for the rank
  std::array<Saved, kRanks> saved = {};
  bool has_saved = false;
  Reads reads = kNoReads;  // in the last event

  Ranks(const std::vector<std::int64_t>& batches, bool independent)
      : count(batches.size()),
        most(*std::max_element(batches.begin(), batches.end())),
        fewest(*std::min_element(batches.begin(), batches.end())),
        are_independent(independent) {
    std::copy(batches.begin(), batches.end(), num_batches.begin());
  }
  [[nodiscard]] bool any_open() const {
    for (std::size_t rank = 0; rank < count; ++rank)
      if (positions[rank].is_open()) return true;
    return false;
  }

  void open(std::int64_t num_skipped) {
    for (std::size_t rank = 0; rank < count; ++rank)
      positions[rank].begin({.num_skipped = num_skipped, .ranks_are_independent = are_independent});
  }
  void begin(std::int64_t num_skipped) {
    open(num_skipped);
    next();
  }
  // An exception before the first batch.
  void fail_to_begin() {
    open(/*num_skipped=*/1);
    leave();
  }
  void next() {
    for (std::size_t rank = 0; rank < count; ++rank) {
      auto& position = positions[rank];
      if (!position.is_open()) continue;
      const auto place = position.num_read();
      if (is_over[rank] || place >= num_batches[rank]) {
        position.end(/*counts_as_epoch=*/most > 0);
        is_over[rank] = false;
        continue;
      }
      reads[rank] = {position.epoch(), place};
      position.hand_out(1, place + 1 == num_batches[rank] ? std::optional(last_step(rank)) : std::nullopt);
    }
  }
  [[nodiscard]] LastStep last_step(std::size_t rank) const {
    if (are_independent) return LastStep::kOfAllRanks;  // it is not known
    if (num_batches[rank] < most) return LastStep::kOthersContinue;
    return fewest < most ? LastStep::kOthersEnded : LastStep::kOfAllRanks;
  }
  void leave() {
    for (std::size_t rank = 0; rank < count; ++rank)
      if (positions[rank].is_open()) positions[rank].leave();
  }
  void save() {
    has_saved = true;
    for (std::size_t rank = 0; rank < count; ++rank) saved[rank] = positions[rank].save();
  }
  void load() {
    const std::vector<Saved> of_ranks(saved.begin(), saved.begin() + static_cast<std::ptrdiff_t>(count));
    const bool is_new_process = any_open();  // otherwise the loaders of this one load
    for (std::size_t rank = 0; rank < count; ++rank) {
      if (is_new_process) positions[rank] = {};
      positions[rank].load(saved[rank]);
      if (are_independent) positions[rank].agree(of_ranks);
    }
    note_what_is_over();
  }
  void set_epoch(std::int64_t epoch) {
    for (std::size_t rank = 0; rank < count; ++rank) positions[rank].set_epoch(epoch);
    note_what_is_over();
  }
  void note_what_is_over() {
    for (std::size_t rank = 0; rank < count; ++rank) is_over[rank] = positions[rank].start().nothing_left;
  }
};

// What a program means that knows the batches of all ranks: one epoch and one number of steps.
struct Model {
  struct Place {
    std::int64_t epoch = 0, steps = 0;
  };
  std::int64_t epoch = 0, steps = 0;
  bool is_open = false, continues = false;  // continues: the next pass does
  std::optional<Place> left = {};           // of a loop that was left
  Place saved = {};
  bool saved_inside = false;
  Reads reads = kNoReads;  // in the last event

  void advance(const Ranks& ranks) {
    if (steps >= ranks.most) {
      if (ranks.most > 0) ++epoch;
      is_open = false;
      return;
    }
    for (std::size_t rank = 0; rank < ranks.count; ++rank)
      if (steps < ranks.num_batches[rank]) reads[rank] = {epoch, steps};
    ++steps;
  }
  void begin(std::int64_t num_skipped, const Ranks& ranks) {
    steps = (continues ? steps : 0) + num_skipped;
    continues = false;
    is_open = true;
    left.reset();
    advance(ranks);
  }
  void fail_to_begin() { left.reset(); }
  // Where ranks have different numbers of batches, the last step ends the pass: the ranks without it have ended theirs.
  [[nodiscard]] bool is_over(const Ranks& ranks) const {
    return !ranks.are_independent && steps == ranks.most && ranks.fewest < ranks.most;
  }
  void leave(const Ranks& ranks) {
    is_open = false;
    if (is_over(ranks)) {
      ++epoch;
      return;
    }
    left = Place{epoch, steps};
    if (ranks.are_independent) ++epoch;
  }
  void save(const Ranks& ranks) {
    const bool is_between = (!is_open && !continues && !left) || (is_open && is_over(ranks));
    saved_inside = !is_between;
    saved = left ? *left : Place{epoch, steps};
    if (is_open && is_between) ++saved.epoch;
  }
  void load() {
    epoch = saved.epoch;
    continues = saved_inside;
    steps = saved.steps;
    is_open = false;
    left.reset();
  }
  void set_epoch(std::int64_t next) {
    if (next != epoch) continues = false;
    left.reset();
    epoch = next;
  }
};

// Depth-first over all sequences of events that a program can have.
class Exploration {
 public:
  explicit Exploration(int max_events) : max_events_(max_events) {}

  void explore(const std::vector<std::int64_t>& num_batches, bool are_independent) {
    visit(Ranks(num_batches, are_independent), {}, "");
  }
  [[nodiscard]] std::int64_t num_states() const { return num_states_; }

 private:
  void visit(const Ranks& ranks, const Model& model, const std::string& events) {
    ++num_states_;
    if (::testing::Test::HasFailure()) return;
    check(ranks, model, events);
    if (static_cast<int>(events.size()) == max_events_) return;
    const auto follow = [&](char event, const auto& act) {
      auto next_ranks = ranks;
      auto next_model = model;
      next_ranks.reads = next_model.reads = kNoReads;
      act(next_ranks, next_model);
      visit(next_ranks, next_model, events + event);
    };
    if (events.empty() || events.back() != 's')  // a second time in a row would save the same
      follow('s', [](Ranks& all, Model& one) { one.save(all), all.save(); });
    if (ranks.has_saved) follow('l', [](Ranks& all, Model& one) { all.load(), one.load(); });
    if (ranks.any_open()) {
      follow('n', [](Ranks& all, Model& one) { all.next(), one.advance(all); });
      follow('x', [](Ranks& all, Model& one) { all.leave(), one.leave(all); });
      return;
    }
    follow('f', [](Ranks& all, Model& one) { all.fail_to_begin(), one.fail_to_begin(); });
    for (const std::int64_t skipped : {0, 1}) {
      follow(skipped == 0 ? 'b' : 'B', [&](Ranks& all, Model& one) { all.begin(skipped), one.begin(skipped, all); });
    }
    for (const std::int64_t more : {0, 1}) {
      const auto epoch = model.epoch + more;
      follow(more == 0 ? 'e' : 'E', [&](Ranks& all, Model& one) { all.set_epoch(epoch), one.set_epoch(epoch); });
    }
  }

  static void check(const Ranks& ranks, const Model& model, const std::string& events) {
    bool agree = ranks.any_open() == model.is_open && ranks.reads == model.reads;
    for (std::size_t rank = 0; rank < ranks.count && !model.is_open; ++rank) {
      const auto start = ranks.positions[rank].start();
      agree = agree && start.epoch == model.epoch && start.continues == model.continues;
      if (start.nothing_left)
        agree = agree && model.steps >= ranks.num_batches[rank];
      else if (model.continues)
        agree = agree && start.num_read == model.steps;
    }
    if (!agree) ADD_FAILURE() << describe(ranks, model, events);
  }

  static std::string describe(const Ranks& ranks, const Model& model, const std::string& events) {
    std::ostringstream text;
    text << "after the events " << events << (ranks.are_independent ? ", ranks with parts of their own" : "")
         << "\n  all ranks: epoch " << model.epoch << ", steps " << model.steps << ", continues " << model.continues
         << ", open " << model.is_open;
    for (std::size_t rank = 0; rank < ranks.count; ++rank) {
      const auto start = ranks.positions[rank].start();
      text << "\n  rank " << rank << " of " << ranks.num_batches[rank] << " batches: epoch " << start.epoch << ", read "
           << start.num_read << ", continues " << start.continues << ", nothing left " << start.nothing_left
           << ", open " << ranks.positions[rank].is_open() << "; it read batch " << ranks.reads[rank].second
           << " of epoch " << ranks.reads[rank].first << ", expected " << model.reads[rank].second << " of "
           << model.reads[rank].first;
    }
    return text.str();
  }

  int max_events_;
  std::int64_t num_states_ = 0;
};

// Plans give ranks numbers of batches that differ by at most one, with more on the first ranks.
TEST(LoaderPositionTest, RanksWithPlannedBatchesAgreeAfterEverySequenceOfEvents) {
  Exploration exploration(7);
  for (std::size_t num_ranks = 1; num_ranks <= 3; ++num_ranks) {
    for (std::int64_t most = 0; most <= kMost; ++most) {
      for (std::size_t with_most = most == 0 ? num_ranks : 1; with_most <= num_ranks; ++with_most) {
        std::vector<std::int64_t> num_batches(num_ranks, most - 1);
        std::fill_n(num_batches.begin(), with_most, most);
        exploration.explore(num_batches, /*are_independent=*/false);
      }
    }
  }
  EXPECT_GT(exploration.num_states(), 100'000);
}

// In any number. The order of the ranks does not matter, so only one order is tried.
TEST(LoaderPositionTest, RanksWithPartsOfTheirOwnAgreeAfterEverySequenceOfEvents) {
  Exploration exploration(7);
  for (std::int64_t first = 0; first <= kMost; ++first) {
    for (std::int64_t second = first; second <= kMost; ++second) {
      exploration.explore({first, second}, /*are_independent=*/true);
      for (std::int64_t third = second; third <= kMost; ++third) exploration.explore({first, second, third}, true);
    }
  }
  EXPECT_GT(exploration.num_states(), 1'000'000);
}

// The table of stages has no entry for these.
TEST(LoaderPositionTest, EventsWithoutAMeaningAreRefused) {
  const LoaderPosition closed;
  EXPECT_THROW(LoaderPosition(closed).hand_out(1), InternalError);
  EXPECT_THROW(LoaderPosition(closed).end(), InternalError);
  EXPECT_THROW(LoaderPosition(closed).leave(), InternalError);
  auto open = closed;
  open.begin({});
  EXPECT_THROW(LoaderPosition(open).begin({}), InternalError);
  EXPECT_THROW(LoaderPosition(open).load({}), InternalError);
  open.hand_out(1, LastStep::kOthersEnded);
  EXPECT_THROW(LoaderPosition(open).hand_out(1), InternalError);
}

// Where ranks that read parts of their own repeat passes until a number of steps, they are in different epochs, and a
// rank that starts one must not take a pass of other ranks for one that it has to wait for.
TEST(LoaderPositionTest, APassOfAnotherEpochIsNotContinued) {
  LoaderPosition ahead;
  ahead.load({.epoch = 5});
  ahead.agree({{.epoch = 2, .num_read = 1}, {.epoch = 5}});
  EXPECT_EQ(ahead.start(), (LoaderPosition::Start{.epoch = 5}));
  ahead.agree({{.epoch = 4, .num_read = 1}, {.epoch = 5}});
  EXPECT_EQ(ahead.start(), (LoaderPosition::Start{.epoch = 4, .continues = true, .nothing_left = true}));
}

}  // namespace
}  // namespace accel
