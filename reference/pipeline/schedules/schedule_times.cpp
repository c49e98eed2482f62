#include "reference/pipeline/schedules/schedule_times.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel::pipeline {
namespace {

using Channel = std::pair<int, int>;  // from a rank to another one

class Run {
 public:
  Run(const Schedule& schedule, const std::vector<ActionCosts>& costs, std::optional<int> send_capacity)
      : schedule_(schedule),
        costs_(costs),
        capacity_(send_capacity),
        rank_of_(rank_of_stages(schedule)),
        num_slots_(static_cast<std::size_t>(schedule.sizes.stages) * schedule.sizes.micro_batches),
        forward_(num_slots_),
        backward_(num_slots_),
        next_(schedule.actions.size()),
        clocks_(schedule.actions.size()) {
    result_.times.resize(schedule.actions.size());
  }

  ScheduleTimes run() && {
    while (const auto rank = next_rank()) perform(*rank);
    for (int rank = 0; rank < schedule_.sizes.ranks; ++rank) {
      if (!has_ended(rank)) result_.waits.push_back(wait_of(rank));
    }
    result_.bubble = bubble();
    return std::move(result_);
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  [[nodiscard]] std::size_t slot(const Action& action) const {
    return static_cast<std::size_t>(action.stage) * schedule_.sizes.micro_batches + action.micro_batch;
  }

  // Of the messages in one direction, by the stage that receives them and the micro-batch.
  struct Messages {
    explicit Messages(std::size_t num_slots) : posted(num_slots), arrived(num_slots, kNever) {}
    std::vector<bool> posted;     // whether the receive is
    std::vector<double> arrived;  // when
  };
  Messages& messages(ActionKind receive) { return receive == ActionKind::kReceiveForward ? forward_ : backward_; }

  // When the message that the action needs arrives, or 0 if it needs none.
  [[nodiscard]] double arrival(int rank, const Action& action) const {
    const auto is_elsewhere = [&](int stage) { return rank_of_[stage] != rank; };
    if (action.kind == ActionKind::kForward && action.stage > 0 && is_elsewhere(action.stage - 1))
      return forward_.arrived[slot(action)];
    if (has_input_gradient(action.kind) && action.stage + 1 < schedule_.sizes.stages && is_elsewhere(action.stage + 1))
      return backward_.arrived[slot(action)];
    return 0;
  }

  [[nodiscard]] bool has_ended(int rank) const { return next_[rank] == schedule_.actions[rank].size(); }
  [[nodiscard]] const Action& next_action(int rank) const { return schedule_.actions[rank][next_[rank]]; }

  [[nodiscard]] Channel channel_of(const Action& message) const {
    const auto& send = is_send(message.kind) ? message : other_end_of(message);
    return {rank_of_[send.stage], rank_of_[other_end_of(send).stage]};
  }

  // Whether a send can return now: its receive is posted, or there is room for it.
  bool can_send(const Action& send) {
    const auto receive = other_end_of(send);
    return !capacity_ || messages(receive.kind).posted[slot(receive)] || num_unreceived_[channel_of(send)] < *capacity_;
  }

  // Of the next action of a rank; nothing while it has to wait.
  std::optional<ActionTime> time_of_next(int rank) {
    const auto& action = next_action(rank);
    const double clock = clocks_[rank];
    if (is_send(action.kind)) {
      if (!can_send(action)) return std::nullopt;
      return ActionTime{.start = clock, .end = std::max(clock, now_)};
    }
    if (!is_compute(action.kind)) return ActionTime{.start = clock, .end = clock};
    const double start = std::max(clock, arrival(rank, action));
    if (start == kNever) return std::nullopt;
    const auto& costs = costs_.size() == 1 ? costs_.front() : costs_[action.stage];
    return ActionTime{.start = start, .end = start + costs.of(action.kind)};
  }

  // The rank whose next action ends first. Actions are performed in the order in which they end, so whether a send can
  // return is known at its time.
  std::optional<int> next_rank() {
    std::optional<int> next;
    double end = kNever;
    for (int rank = 0; rank < schedule_.sizes.ranks; ++rank) {
      if (has_ended(rank)) continue;
      const auto time = time_of_next(rank);
      if (time && time->end < end) next = rank, end = time->end;
    }
    return next;
  }

  void perform(int rank) {
    const auto& action = next_action(rank);
    const auto time = *time_of_next(rank);
    if (is_send(action.kind)) {
      const auto receive = other_end_of(action);
      messages(receive.kind).arrived[slot(receive)] = time.end;
      if (!messages(receive.kind).posted[slot(receive)]) ++num_unreceived_[channel_of(action)];
    } else if (is_receive(action.kind)) {
      messages(action.kind).posted[slot(action)] = true;
      if (messages(action.kind).arrived[slot(action)] < kNever) --num_unreceived_[channel_of(action)];
    }
    clocks_[rank] = now_ = time.end;
    result_.times[rank].push_back(time);
    ++next_[rank];
  }

  [[nodiscard]] ActionWait wait_of(int rank) const {
    const auto& action = next_action(rank);
    if (is_send(action.kind)) {
      const auto receive = other_end_of(action);
      return {rank, rank_of_[receive.stage], action, receive};
    }
    const auto send = other_end_of(receive_for(action));
    return {rank, rank_of_[send.stage], action, send};
  }

  [[nodiscard]] double bubble() const {
    double first = kNever, last = 0, work = 0;
    for (std::size_t rank = 0; rank < result_.times.size(); ++rank) {
      for (std::size_t index = 0; index < result_.times[rank].size(); ++index) {
        if (!is_compute(schedule_.actions[rank][index].kind)) continue;
        const auto& time = result_.times[rank][index];
        first = std::min(first, time.start);
        last = std::max(last, time.end);
        work += time.end - time.start;
      }
    }
    return last > first ? 1 - work / (static_cast<double>(result_.times.size()) * (last - first)) : 0;
  }

  const Schedule& schedule_;
  const std::vector<ActionCosts>& costs_;
  std::optional<int> capacity_;
  std::vector<int> rank_of_;
  std::size_t num_slots_;
  Messages forward_, backward_;
  std::map<Channel, int> num_unreceived_;  // messages that were sent and whose receives are not posted
  double now_ = 0;
  std::vector<std::size_t> next_;
  std::vector<double> clocks_;
  ScheduleTimes result_;
};

}  // namespace

double ActionCosts::of(ActionKind kind) const {
  switch (kind) {
    case ActionKind::kForward: return forward;
    case ActionKind::kBackward: return backward_input + backward_weight;
    case ActionKind::kBackwardInput: return backward_input;
    case ActionKind::kBackwardWeight: return backward_weight;
    default: return 0;
  }
}

ScheduleTimes times_of(const Schedule& schedule, const std::vector<ActionCosts>& costs,
                       std::optional<int> send_capacity) {
  check_argument(costs.size() == 1 || costs.size() == static_cast<std::size_t>(schedule.sizes.stages),
                 "times_of: costs of {} stages; expected one for all, or one of each of the {} stages", costs.size(),
                 schedule.sizes.stages);
  return Run(schedule, costs, send_capacity).run();
}

}  // namespace accel::pipeline
