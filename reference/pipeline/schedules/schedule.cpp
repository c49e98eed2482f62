#include "reference/pipeline/schedules/schedule.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::pipeline {
namespace {

// The actions of one rank. Each call takes the next micro-batch of the stage.
class RankActions {
 public:
  void forward(int stage) { actions_.push_back({ActionKind::kForward, stage, forwards_[stage]++}); }
  void backward(int stage) { actions_.push_back({ActionKind::kBackward, stage, backwards_[stage]++}); }
  void backward_input(int stage) {
    const int micro_batch = backwards_[stage]++;
    actions_.push_back({ActionKind::kBackwardInput, stage, micro_batch});
    waiting_.push_back({ActionKind::kBackwardWeight, stage, micro_batch});
  }
  // The gradients of weights that wait longest, of any stage or of one; nothing if none wait.
  void backward_weight() { take_waiting(waiting_.begin()); }
  void backward_weight(int stage) { take_waiting(first_waiting(stage)); }
  [[nodiscard]] bool has_waiting() const { return !waiting_.empty(); }
  [[nodiscard]] bool has_waiting(int stage) { return first_waiting(stage) != waiting_.end(); }
  // Lets the last action run together with the next one.
  void join_next() { actions_.back().joins_next = true; }

  [[nodiscard]] std::vector<Action> actions() && { return std::move(actions_); }

 private:
  using Waiting = std::deque<Action>;

  Waiting::iterator first_waiting(int stage) {
    return std::find_if(waiting_.begin(), waiting_.end(), [&](const Action& action) { return action.stage == stage; });
  }
  void take_waiting(Waiting::iterator action) {
    if (action == waiting_.end()) return;
    actions_.push_back(*action);
    waiting_.erase(action);
  }

  std::vector<Action> actions_;
  std::map<int, int> forwards_, backwards_;  // of a stage: its next micro-batch
  Waiting waiting_;
};

int stages_per_rank(const ScheduleSizes& sizes) { return sizes.stages / sizes.ranks; }

// --- sizes -----------------------------------------------------------------------------------------------------------

void check_multiple(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  if (sizes.stages % sizes.ranks != 0)
    problems.push_back(
        fmt::format("{} stages on {} ranks; expected a multiple of the ranks", sizes.stages, sizes.ranks));
}

void check_one_stage(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  if (sizes.stages != sizes.ranks)
    problems.push_back(
        fmt::format("{} stages on {} ranks; expected one stage per rank (with more: interleaved_1f1b, "
                    "interleaved_zero_bubble)",
                    sizes.stages, sizes.ranks));
}

int num_rounds(const ScheduleSizes& sizes) { return std::max(1, sizes.micro_batches / sizes.ranks); }

void check_rounds(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  check_multiple(sizes, problems);
  if (sizes.micro_batches % num_rounds(sizes) != 0)
    problems.push_back(
        fmt::format("{} micro-batches on {} ranks; expected a multiple of the {} rounds that the ranks make",
                    sizes.micro_batches, sizes.ranks, num_rounds(sizes)));
}

void check_two_stages(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  if (sizes.stages != 2 * sizes.ranks)
    problems.push_back(fmt::format("{} stages on {} ranks; expected two stages per rank", sizes.stages, sizes.ranks));
}

void check_dualpipe_v(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  check_two_stages(sizes, problems);
  if (sizes.micro_batches < sizes.stages)
    problems.push_back(fmt::format("{} micro-batches for {} stages; expected at least as many as stages",
                                   sizes.micro_batches, sizes.stages));
}

// --- schedules -------------------------------------------------------------------------------------------------------

// All forwards, then all backwards.
std::vector<Action> gpipe(const ScheduleSizes& sizes, int rank) {
  RankActions rank_actions;
  for (int stage = rank; stage < sizes.stages; stage += sizes.ranks) {
    for (int micro_batch = 0; micro_batch < sizes.micro_batches; ++micro_batch) rank_actions.forward(stage);
  }
  for (int stage = sizes.stages - sizes.ranks + rank; stage >= 0; stage -= sizes.ranks) {
    for (int micro_batch = 0; micro_batch < sizes.micro_batches; ++micro_batch) rank_actions.backward(stage);
  }
  return std::move(rank_actions).actions();
}

// A rank computes some forwards ahead, then a forward and a backward in turn, then the remaining backwards. With
// several stages per rank it takes the same number of micro-batches through each stage before it returns to the first
// one. A rank nearer to the input computes `ahead_per_rank` more forwards ahead than the next one. Where backwards are
// split, the gradients of weights follow `rank` backwards later.
std::vector<Action> alternating(const ScheduleSizes& sizes, int rank, int ahead_per_rank, bool is_split) {
  const int per_rank = stages_per_rank(sizes), per_round = sizes.micro_batches / num_rounds(sizes);
  const int total = per_rank * sizes.micro_batches;
  const int ahead = std::min(total, (per_rank - 1) * per_round + ahead_per_rank * (sizes.ranks - 1 - rank));
  RankActions rank_actions;
  const auto forward = [&](int index) { rank_actions.forward(index / per_round % per_rank * sizes.ranks + rank); };
  const auto backward = [&](int index) {
    const int stage = (per_rank - 1 - index / per_round % per_rank) * sizes.ranks + rank;
    if (!is_split) return rank_actions.backward(stage);
    rank_actions.backward_input(stage);
    if (index >= rank) rank_actions.backward_weight();
  };
  for (int index = 0; index < ahead; ++index) forward(index);
  for (int index = ahead; index < total; ++index) {
    forward(index);
    backward(index - ahead);
  }
  for (int index = total - ahead; index < total; ++index) backward(index);
  while (rank_actions.has_waiting()) rank_actions.backward_weight();
  return std::move(rank_actions).actions();
}

std::vector<Action> one_forward_one_backward(const ScheduleSizes& sizes, int rank) {
  return alternating(sizes, rank, 1, false);
}
std::vector<Action> interleaved(const ScheduleSizes& sizes, int rank) { return alternating(sizes, rank, 2, false); }
std::vector<Action> zero_bubble(const ScheduleSizes& sizes, int rank) { return alternating(sizes, rank, 1, true); }

// The first stages go down the ranks, the last ones up again, so the first rank has the first and the last stage.
std::vector<Action> zero_bubble_v(const ScheduleSizes& sizes, int rank) {
  const int down = rank, up = sizes.stages - 1 - rank, to_end = sizes.ranks - rank;
  // It is written for enough micro-batches to fill the pipeline; those that do not exist are removed.
  const int micro_batches = std::max(2 * sizes.ranks - 1, sizes.micro_batches);
  RankActions rank_actions;
  const auto backward_up = [&] {
    rank_actions.backward_input(up);
    rank_actions.backward_weight(up);
  };
  for (int count = 0; count < 2 * to_end - 1; ++count) rank_actions.forward(down);
  for (int count = 0; count < rank; ++count) {
    rank_actions.forward(up);
    rank_actions.forward(down);
  }
  for (int count = 0; count < to_end; ++count) {
    rank_actions.forward(up);
    backward_up();
  }
  int forwards_down = 2 * to_end - 1 + rank;
  for (int forwards_up = rank + to_end; forwards_up < micro_batches; ++forwards_up) {
    if (forwards_down < micro_batches) {
      rank_actions.forward(down);
      ++forwards_down;
    }
    rank_actions.backward_input(down);
    rank_actions.backward_weight(down);
    rank_actions.forward(up);
    backward_up();
  }
  for (int count = 0; count < rank; ++count) {
    rank_actions.backward_input(down);
    rank_actions.backward_input(up);
  }
  for (int count = 0; count < to_end; ++count) {
    rank_actions.backward_input(down);
    rank_actions.backward_weight(down);
  }
  for (const int stage : {up, down}) {
    while (rank_actions.has_waiting(stage)) rank_actions.backward_weight(stage);
  }
  auto actions = std::move(rank_actions).actions();
  std::erase_if(actions, [&](const Action& action) { return action.micro_batch >= sizes.micro_batches; });
  return actions;
}

// Source: DeepSeek's DualPipe, "cut in half". A forward of one stage and a backward of the other run together.
std::vector<Action> dualpipe_v(const ScheduleSizes& sizes, int rank) {
  const int down = rank, up = sizes.stages - 1 - rank, to_last = sizes.ranks - 1 - rank;
  RankActions rank_actions;
  const auto together = [&](int forward, int backward) {
    rank_actions.forward(forward);
    rank_actions.join_next();
    rank_actions.backward(backward);
  };
  for (int count = 0; count < 2 * to_last; ++count) rank_actions.forward(down);
  for (int count = 0; count < rank + 1; ++count) {
    rank_actions.forward(down);
    rank_actions.forward(up);
  }
  for (int count = 0; count < to_last; ++count) {
    rank_actions.backward_input(up);
    rank_actions.backward_weight();
    rank_actions.forward(up);
  }
  for (int count = 0; count < sizes.micro_batches - 2 * sizes.ranks + rank + 1; ++count) {
    if (count == 0 && to_last == 0) {  // apart, which makes the bubble smaller
      rank_actions.forward(down);
      rank_actions.backward(up);
    } else {
      together(down, up);
    }
    together(up, down);
  }
  for (int count = 0; count < to_last; ++count) {
    rank_actions.backward(up);
    together(up, down);
  }
  // From the middle on, the gradients of weights wait, to fill the end.
  const auto backward = [&](int stage, int count) {
    const int half = (rank + 1) / 2;
    const bool is_split = count > half || (count == half && (stage == down || rank % 2 == 1));
    if (is_split) return rank_actions.backward_input(stage);
    rank_actions.backward(stage);
  };
  for (int count = 0; count < rank + 1; ++count) {
    backward(up, count);
    backward(down, count);
  }
  for (int count = 0; count < to_last; ++count) {
    rank_actions.backward_weight();
    backward(down, rank + 1);
  }
  for (int count = 0; count < rank + 1; ++count) rank_actions.backward_weight();
  return std::move(rank_actions).actions();
}

// --- messages --------------------------------------------------------------------------------------------------------

using Done = std::set<std::tuple<ActionKind, int, int>>;

bool contains(const Done& done, ActionKind kind, int stage, int micro_batch) {
  return done.contains({kind, stage, micro_batch});
}

// Whether the rank has what the action needs of the stages before and after: it received it, or computed it itself.
bool has_input(const Done& done, const Action& action, int num_stages) {
  const int micro_batch = action.micro_batch, stage = action.stage;
  if (action.kind == ActionKind::kForward)
    return stage == 0 || contains(done, ActionKind::kReceiveForward, stage, micro_batch) ||
           contains(done, ActionKind::kForward, stage - 1, micro_batch);
  if (has_input_gradient(action.kind))
    return stage == num_stages - 1 || contains(done, ActionKind::kReceiveBackward, stage, micro_batch) ||
           contains(done, ActionKind::kBackward, stage + 1, micro_batch) ||
           contains(done, ActionKind::kBackwardInput, stage + 1, micro_batch);
  return true;
}

// The message with the result of an action, if another rank needs it.
std::optional<Action> message_of(const Action& action, const std::vector<int>& rank_of) {
  const auto is_elsewhere = [&](int other) { return rank_of[other] != rank_of[action.stage]; };
  if (action.kind == ActionKind::kForward && action.stage + 1 < static_cast<int>(rank_of.size()) &&
      is_elsewhere(action.stage + 1))
    return Action{ActionKind::kSendForward, action.stage, action.micro_batch};
  if (has_input_gradient(action.kind) && action.stage > 0 && is_elsewhere(action.stage - 1))
    return Action{ActionKind::kSendBackward, action.stage, action.micro_batch};
  return std::nullopt;
}

// The end of the actions that run together from `begin` on.
std::size_t end_of_joined(const std::vector<Action>& actions, std::size_t begin) {
  while (begin + 1 < actions.size() && actions[begin].joins_next) ++begin;
  return begin + 1;
}

}  // namespace

void check_sizes(const ScheduleSizes& sizes, std::vector<std::string>& problems) {
  constexpr std::int64_t kCellsMax = 10'000'000;
  for (const auto& [what, number] : {std::pair("stages", sizes.stages), std::pair("ranks", sizes.ranks),
                                     std::pair("micro-batches", sizes.micro_batches)}) {
    if (number < 1) problems.push_back(fmt::format("{} {}; expected at least 1", number, what));
  }
  const auto cells = std::int64_t{sizes.stages} * sizes.micro_batches;
  if (cells > kCellsMax)
    problems.push_back(fmt::format("{} stages times {} micro-batches; expected at most {} of both together",
                                   sizes.stages, sizes.micro_batches, kCellsMax));
  if (sizes.ranks > kCellsMax) problems.push_back(fmt::format("{} ranks; expected at most {}", sizes.ranks, kCellsMax));
}

const std::vector<ScheduleKind>& schedule_kinds() {
  static const std::vector<ScheduleKind> kinds{
      {"gpipe", "all forwards, then all backwards", 1, &check_multiple, &gpipe},
      {"1f1b", "a forward and a backward in turn", 1, &check_one_stage, &one_forward_one_backward},
      {"interleaved_1f1b", "1f1b with several stages per rank", 2, &check_rounds, &interleaved},
      {"zb_h1", "1f1b with gradients of weights in its gaps", 1, &check_one_stage, &zero_bubble},
      {"interleaved_zero_bubble", "zb_h1 with several stages per rank", 2, &check_rounds, &zero_bubble},
      {"zbv", "two stages per rank, down the ranks and up again", 2, &check_two_stages, &zero_bubble_v},
      {"dualpipe_v", "as zbv, with forwards and backwards together", 2, &check_dualpipe_v, &dualpipe_v}};
  return kinds;
}

const ScheduleKind& schedule_kind(std::string_view name) {
  const auto& kinds = schedule_kinds();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(), [&](const auto& candidate) { return candidate.name == name; });
  if (kind != kinds.end()) return *kind;
  std::vector<std::string_view> names;
  for (const auto& candidate : kinds) names.push_back(candidate.name);
  throw ArgumentError(fmt::format("no schedule has the name '{}'; expected {}", name, listed(names, ", ")));
}

Schedule make_schedule(std::string_view name, const ScheduleSizes& sizes) {
  const auto& kind = schedule_kind(name);
  std::vector<std::string> problems;
  check_sizes(sizes, problems);
  if (problems.empty()) kind.check(sizes, problems);
  if (!problems.empty()) throw ConfigError(fmt::format("schedule {}: {}", name, listed(problems, "; ")));
  Schedule schedule{.name = std::string(name), .sizes = sizes};
  for (int rank = 0; rank < sizes.ranks; ++rank) schedule.actions.push_back(kind.actions_of_rank(sizes, rank));
  return schedule;
}

std::vector<int> rank_of_stages(const Schedule& schedule) {
  std::vector<int> rank_of(schedule.sizes.stages, -1);
  for (int rank = 0; rank < schedule.sizes.ranks; ++rank) {
    for (const auto& action : schedule.actions[rank]) {
      if (is_compute(action.kind) && action.stage < schedule.sizes.stages) rank_of[action.stage] = rank;
    }
  }
  return rank_of;
}

bool has_messages(const Schedule& schedule) {
  return std::any_of(schedule.actions.begin(), schedule.actions.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const Action& action) { return is_send(action.kind) || is_receive(action.kind); });
  });
}

// Source: torch/distributed/pipelining/schedules.py, _add_send_recv.
Schedule with_messages(const Schedule& schedule) {
  const auto rank_of = rank_of_stages(schedule);
  const int num_ranks = schedule.sizes.ranks;
  Schedule result{
      .name = schedule.name, .sizes = schedule.sizes, .actions = std::vector<std::vector<Action>>(num_ranks)};
  std::vector<Done> done(num_ranks);
  std::vector<std::size_t> next(num_ranks, 0);
  const auto add = [&](int rank, const Action& action) {
    if (done[rank].insert({action.kind, action.stage, action.micro_batch}).second || !has_micro_batch(action.kind))
      result.actions[rank].push_back(action);
  };
  const auto advance = [&](int rank, bool is_forced) {
    const auto& actions = schedule.actions[rank];
    if (next[rank] == actions.size()) return false;
    const auto end = end_of_joined(actions, next[rank]);
    for (auto index = next[rank]; index < end; ++index) {
      if (has_input(done[rank], actions[index], schedule.sizes.stages)) continue;
      if (!is_forced) return false;
      add(rank, receive_for(actions[index]));
    }
    for (auto index = next[rank]; index < end; ++index) add(rank, actions[index]);
    for (auto index = next[rank]; index < end; ++index) {
      const auto send = message_of(actions[index], rank_of);
      if (!send) continue;
      const auto receive = other_end_of(*send);
      add(rank, *send);
      add(rank_of[receive.stage], receive);
    }
    next[rank] = end;
    return true;
  };
  const auto advance_any = [&](bool is_forced) {
    bool has_advanced = false;
    for (int rank = 0; rank < num_ranks && !(is_forced && has_advanced); ++rank)
      has_advanced = advance(rank, is_forced) || has_advanced;
    return has_advanced;
  };
  // Where ranks wait for each other, one goes first, so that the table is complete and a check can name the cycle.
  while (advance_any(/*is_forced=*/false) || advance_any(/*is_forced=*/true)) {
  }
  return result;
}

Schedule with_deferred_receives(const Schedule& schedule) {
  Schedule result{.name = schedule.name, .sizes = schedule.sizes};
  for (const auto& actions : schedule.actions) {
    auto& moved = result.actions.emplace_back();
    std::vector<Action> receives;
    std::copy_if(actions.begin(), actions.end(), std::back_inserter(receives),
                 [](const Action& action) { return is_receive(action.kind); });
    const auto take_receive_for = [&](const Action& action) {
      const auto receive = std::find(receives.begin(), receives.end(), receive_for(action));
      if (receive == receives.end()) return;
      moved.push_back(*receive);
      receives.erase(receive);
    };
    for (std::size_t begin = 0; begin < actions.size();) {
      const auto end = end_of_joined(actions, begin);
      for (auto index = begin; index < end; ++index) {
        const auto kind = actions[index].kind;
        if (kind == ActionKind::kForward || has_input_gradient(kind)) take_receive_for(actions[index]);
      }
      for (auto index = begin; index < end; ++index) {
        if (!is_receive(actions[index].kind)) moved.push_back(actions[index]);
      }
      begin = end;
    }
    moved.insert(moved.end(), receives.begin(), receives.end());  // of actions that are missing
  }
  return result;
}

}  // namespace accel::pipeline
