#include "reference/pipeline/schedules/schedule_check.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::pipeline {
namespace {

constexpr std::size_t kNumKinds = static_cast<std::size_t>(ActionKind::kUnshard);  // those that have a micro-batch

// Where an action stands in the table.
struct Place {
  int rank = -1, index = -1;
  int count = 0;
};

// Finds actions in the table.
class Places {
 public:
  explicit Places(const Schedule& schedule)
      : sizes_(schedule.sizes), places_(static_cast<std::size_t>(sizes_.stages) * sizes_.micro_batches * kNumKinds) {
    for (std::size_t rank = 0; rank < schedule.actions.size(); ++rank) {
      for (std::size_t index = 0; index < schedule.actions[rank].size(); ++index) {
        const auto& action = schedule.actions[rank][index];
        if (!has_micro_batch(action.kind) || !is_inside(action)) continue;
        auto& place = places_[slot(action)];
        if (place.count++ == 0) place.rank = static_cast<int>(rank), place.index = static_cast<int>(index);
      }
    }
  }

  [[nodiscard]] bool is_inside(const Action& action) const {
    return action.stage < sizes_.stages && action.micro_batch < sizes_.micro_batches;
  }
  [[nodiscard]] const Place& of(const Action& action) const { return places_[slot(action)]; }

 private:
  [[nodiscard]] std::size_t slot(const Action& action) const {
    return (static_cast<std::size_t>(action.stage) * sizes_.micro_batches + action.micro_batch) * kNumKinds +
           static_cast<std::size_t>(action.kind);
  }

  ScheduleSizes sizes_;
  std::vector<Place> places_;
};

// Each function returns what is wrong.
class TableCheck {
 public:
  explicit TableCheck(const Schedule& schedule)
      : schedule_(schedule), places_(schedule), rank_of_(rank_of_stages(schedule)) {}

  std::vector<std::string> of_computations() {
    check_stages();
    for (int stage = 0; stage < schedule_.sizes.stages; ++stage) {
      for (int micro_batch = 0; micro_batch < schedule_.sizes.micro_batches; ++micro_batch)
        check_computations(stage, micro_batch);
    }
    return std::exchange(problems_, {});
  }

  [[nodiscard]] bool has_all_stages() const {
    return std::find(rank_of_.begin(), rank_of_.end(), -1) == rank_of_.end();
  }

  // All stages must have a rank.
  std::vector<std::string> of_messages() {
    check_sends();
    check_receives();
    return std::exchange(problems_, {});
  }

  std::vector<std::string> of_message_order() {
    check_order_of_messages();
    return std::exchange(problems_, {});
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> text, Args&&... args) {
    problems_.push_back(fmt::format(text, std::forward<Args>(args)...));
  }

  void check_stages() {
    for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
      for (const auto& action : schedule_.actions[rank]) {
        if (has_micro_batch(action.kind) && !places_.is_inside(action))
          add("rank {}: {} is beyond the {} stages and {} micro-batches", rank, to_string(action),
              schedule_.sizes.stages, schedule_.sizes.micro_batches);
        else if (is_compute(action.kind) && rank_of_[action.stage] != static_cast<int>(rank))
          add("rank {}: {}, but rank {} has this stage", rank, to_string(action), rank_of_[action.stage]);
      }
    }
  }

  // Whether the first action stands once and before the second one.
  void check_before(const Action& first, const Action& second) {
    const auto &before = places_.of(first), &after = places_.of(second);
    if (before.count > 0 && after.count > 0 && before.rank == after.rank && before.index > after.index)
      add("rank {}: {} is before {}", after.rank, to_string(second), to_string(first));
  }

  void check_gradients(int stage, int micro_batch) {
    const auto of = [&](ActionKind kind) { return Action{kind, stage, micro_batch}; };
    const auto has = [&](ActionKind kind) { return places_.of(of(kind)).count > 0; };
    const bool has_both = has(ActionKind::kBackward), has_input = has(ActionKind::kBackwardInput),
               has_weight = has(ActionKind::kBackwardWeight);
    if (has_both && has_input)
      add("{} and {} compute the same gradient", to_string(of(ActionKind::kBackward)),
          to_string(of(ActionKind::kBackwardInput)));
    if (has_both && has_weight)
      add("{} and {} compute the same gradient", to_string(of(ActionKind::kBackward)),
          to_string(of(ActionKind::kBackwardWeight)));
    if (!has_both && !has_input && !has_weight) add("{} is missing", to_string(of(ActionKind::kBackward)));
    if (!has_both && has_input && !has_weight) add("{} is missing", to_string(of(ActionKind::kBackwardWeight)));
    if (!has_both && !has_input && has_weight) add("{} is missing", to_string(of(ActionKind::kBackwardInput)));
  }

  void check_computations(int stage, int micro_batch) {
    const auto of = [&](ActionKind kind) { return Action{kind, stage, micro_batch}; };
    for (const auto kind :
         {ActionKind::kForward, ActionKind::kBackward, ActionKind::kBackwardInput, ActionKind::kBackwardWeight}) {
      const auto count = places_.of(of(kind)).count;
      if (count > 1) add("{} stands {} times", to_string(of(kind)), count);
    }
    const auto has = [&](ActionKind kind) { return places_.of(of(kind)).count > 0; };
    if (!has(ActionKind::kForward)) add("{} is missing", to_string(of(ActionKind::kForward)));
    check_gradients(stage, micro_batch);
    for (const auto kind : {ActionKind::kBackward, ActionKind::kBackwardInput})
      check_before(of(ActionKind::kForward), of(kind));
    check_before(of(ActionKind::kBackwardInput), of(ActionKind::kBackwardWeight));
    // A rank with neighbouring stages passes results between them itself.
    if (stage > 0) {
      check_before({ActionKind::kForward, stage - 1, micro_batch}, of(ActionKind::kForward));
      for (const auto upper : {ActionKind::kBackward, ActionKind::kBackwardInput}) {
        for (const auto lower : {ActionKind::kBackward, ActionKind::kBackwardInput})
          check_before(of(upper), {lower, stage - 1, micro_batch});
      }
    }
  }

  // The action at this end of a message: that which computes what is sent, or needs what is received.
  [[nodiscard]] Action computation_of(const Action& message) const {
    const auto of = [&](ActionKind kind) { return Action{kind, message.stage, message.micro_batch}; };
    if (message.kind == ActionKind::kSendForward || message.kind == ActionKind::kReceiveForward)
      return of(ActionKind::kForward);
    return of(places_.of(of(ActionKind::kBackward)).count > 0 ? ActionKind::kBackward : ActionKind::kBackwardInput);
  }

  [[nodiscard]] bool is_needed(const Action& send) const {
    const int other = send.kind == ActionKind::kSendForward ? send.stage + 1 : send.stage - 1;
    return other >= 0 && other < schedule_.sizes.stages && rank_of_[other] != rank_of_[send.stage];
  }

  void check_sends() {
    for (int stage = 0; stage < schedule_.sizes.stages; ++stage) {
      for (int micro_batch = 0; micro_batch < schedule_.sizes.micro_batches; ++micro_batch) {
        for (const auto kind : {ActionKind::kSendForward, ActionKind::kSendBackward})
          check_message({kind, stage, micro_batch});
      }
    }
  }

  void check_receives() {
    for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
      for (const auto& action : schedule_.actions[rank]) {
        if (!is_receive(action.kind)) continue;
        const auto send = other_end_of(action);
        if (send.stage < 0 || send.stage >= schedule_.sizes.stages || !is_needed(send))
          add("rank {}: no other rank has what {} receives", rank, to_string(action));
      }
    }
  }

  void check_message(const Action& send) {
    const auto count = places_.of(send).count;
    if (!is_needed(send)) {
      if (count > 0) add("rank {}: no other rank needs what {} sends", places_.of(send).rank, to_string(send));
      return;
    }
    const auto receive = other_end_of(send);
    for (const auto& message : {send, receive}) {
      const auto& place = places_.of(message);
      if (place.count == 0) add("{} is missing", to_string(message));
      if (place.count > 1) add("{} stands {} times", to_string(message), place.count);
      if (place.count > 0 && place.rank != rank_of_[message.stage])
        add("rank {}: {}, but rank {} has this stage", place.rank, to_string(message), rank_of_[message.stage]);
    }
    check_before(computation_of(send), send);
    check_before(receive, computation_of(receive));
  }

  void check_order_of_messages() {
    std::map<std::pair<int, int>, std::vector<Action>> sends, receives;  // as sends
    for (std::size_t rank = 0; rank < schedule_.actions.size(); ++rank) {
      for (const auto& action : schedule_.actions[rank]) {
        const auto self = static_cast<int>(rank);
        if (is_send(action.kind)) sends[{self, rank_of_[other_end_of(action).stage]}].push_back(action);
        if (is_receive(action.kind))
          receives[{rank_of_[other_end_of(action).stage], self}].push_back(other_end_of(action));
      }
    }
    for (const auto& [ranks, sent] : sends) {
      const auto& received = receives[ranks];
      const auto [send, receive] = std::mismatch(sent.begin(), sent.end(), received.begin(), received.end());
      if (send != sent.end())
        add("between rank {0} and rank {1}, {2} is sent where {3} is received, so a library that matches messages by "
            "their order, as NCCL, would exchange them",
            ranks.first, ranks.second, to_string(*send), to_string(other_end_of(*receive)));
    }
  }

  const Schedule& schedule_;
  Places places_;
  std::vector<int> rank_of_;
  std::vector<std::string> problems_;
};

std::vector<int> peak_activations_of(const Schedule& schedule) {
  std::vector<int> peaks;
  for (const auto& actions : schedule.actions) {
    int live = 0, peak = 0;
    for (const auto& action : actions) {
      if (action.kind == ActionKind::kForward) peak = std::max(peak, ++live);
      if (has_weight_gradient(action.kind)) --live;
    }
    peaks.push_back(peak);
  }
  return peaks;
}

// Each rank that cannot continue waits for another such rank, so the waits end in a cycle.
std::vector<std::string> cycle_of(const std::vector<ActionWait>& waits) {
  if (waits.empty()) return {};
  const auto next_of = [&](std::size_t index) {
    return static_cast<std::size_t>(
        std::find_if(waits.begin(), waits.end(),
                     [&](const auto& wait) { return wait.rank == waits[index].other_rank; }) -
        waits.begin());
  };
  std::vector<std::size_t> path;
  std::size_t index = 0;
  while (index < waits.size() && std::find(path.begin(), path.end(), index) == path.end()) {
    path.push_back(index);
    index = next_of(index);
  }
  path.erase(path.begin(), std::find(path.begin(), path.end(), index));
  std::vector<std::string> cycle;
  for (const auto place : path) {
    const auto& wait = waits[place];
    cycle.push_back(fmt::format("rank {} waits in {} for {} of rank {}", wait.rank, to_string(wait.action),
                                to_string(wait.other), wait.other_rank));
  }
  return cycle;
}

Schedule as_run(const Schedule& schedule, Receives receives) {
  auto complete = has_messages(schedule) ? schedule : with_messages(schedule);
  return receives == Receives::kDeferred ? with_deferred_receives(complete) : complete;
}

}  // namespace

std::string ScheduleCheck::text() const {
  return problems.empty() ? fmt::format("{}", fmt::join(cycle, ", ")) : listed(problems, "; ");
}

ScheduleCheck check_schedule(const Schedule& schedule, const CheckOptions& options) {
  ScheduleCheck check{.peak_activations = peak_activations_of(schedule), .run = schedule};
  TableCheck table(schedule);
  check.problems = table.of_computations();
  if (has_messages(schedule) && table.has_all_stages()) {
    const auto problems = table.of_messages();
    check.problems.insert(check.problems.end(), problems.begin(), problems.end());
  }
  if (!check.problems.empty()) return check;
  check.run = as_run(schedule, options.receives);
  check.times = times_of(check.run, options.costs, options.send_capacity);
  check.cycle = cycle_of(check.times.waits);
  check.notes = TableCheck(check.run).of_message_order();
  return check;
}

}  // namespace accel::pipeline
