#include "sim/predict/pipeline_time.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/pipeline/schedules/schedule.hpp"

namespace accel::predict {
namespace {

using pipeline::Action;
using pipeline::ActionKind;
using pipeline::Schedule;

constexpr double kNever = std::numeric_limits<double>::infinity();

std::optional<Schedule> schedule_of(const PipelineInput& input) {
  if (!input.has_table) return std::nullopt;
  try {
    return pipeline::make_schedule(
        input.schedule,
        {.stages = static_cast<int>(input.stages.size()), .ranks = input.ranks, .micro_batches = input.micro_batches});
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Runs each rank's actions in order, as far as their inputs have arrived.
class ScheduleRun {
 public:
  ScheduleRun(const PipelineInput& input, const Schedule& schedule)
      : input_(input),
        schedule_(schedule),
        rank_of_(pipeline::rank_of_stages(schedule)),
        forward_(input.stages.size() * input.micro_batches),
        backward_(forward_.size()),
        unsent_(input.ranks),
        next_(input.ranks),
        clocks_(input.ranks) {}

  double seconds() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < input_.ranks; ++rank) {
        while (next_[rank] < schedule_.actions[rank].size() && perform(rank)) moved = true;
      }
    }
    for (int rank = 0; rank < input_.ranks; ++rank)
      ensure(next_[rank] == schedule_.actions[rank].size(), "a schedule without an end: {}", schedule_.name);
    return *std::max_element(clocks_.begin(), clocks_.end());
  }

 private:
  [[nodiscard]] std::size_t slot(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * input_.micro_batches + micro_batch;
  }

  bool perform(int rank) {
    const auto& action = schedule_.actions[rank][next_[rank]];
    if (!pipeline::is_compute(action.kind)) {
      ++next_[rank];
      return true;
    }
    const double arrival = arrival_of(rank, action);
    if (arrival == kNever) return false;
    const auto& stage = input_.stages[action.stage];
    clocks_[rank] = std::max(clocks_[rank], arrival) + stage.of(action.kind);
    if (auto* result = result_of(action)) {
      result->end = clocks_[rank];
      unsent_[rank].push_back(result);
    }
    // Actions that run together send their results together.
    if (!action.joins_next) send(rank);
    if (sends(rank, action)) clocks_[rank] += input_.message_seconds * input_.message_visible;
    ++next_[rank];
    return true;
  }

  // What another action needs: an output, or the gradient of an input.
  struct Result {
    double end = kNever;   // when it is computed
    double sent = kNever;  // when it leaves for another rank
  };
  Result* result_of(const Action& action) {
    if (action.kind == ActionKind::kForward) return &forward_[slot(action.stage, action.micro_batch)];
    return has_input_gradient(action.kind) ? &backward_[slot(action.stage, action.micro_batch)] : nullptr;
  }

  void send(int rank) {
    for (auto* result : unsent_[rank]) result->sent = clocks_[rank];
    unsent_[rank].clear();
  }

  [[nodiscard]] int num_stages() const { return static_cast<int>(input_.stages.size()); }

  [[nodiscard]] double arrival_of(int rank, const Action& action) const {
    const auto from = [&](const std::vector<Result>& results, int stage) {
      const auto& result = results[slot(stage, action.micro_batch)];
      return rank_of_[stage] == rank ? result.end : result.sent + input_.message_seconds;
    };
    if (action.kind == ActionKind::kForward) return action.stage > 0 ? from(forward_, action.stage - 1) : 0;
    if (action.kind == ActionKind::kBackwardWeight) return backward_[slot(action.stage, action.micro_batch)].end;
    return action.stage + 1 < num_stages() ? from(backward_, action.stage + 1)
                                           : forward_[slot(action.stage, action.micro_batch)].end;
  }

  [[nodiscard]] bool sends(int rank, const Action& action) const {
    if (action.kind == ActionKind::kForward)
      return action.stage + 1 < num_stages() && rank_of_[action.stage + 1] != rank;
    return has_input_gradient(action.kind) && action.stage > 0 && rank_of_[action.stage - 1] != rank;
  }

  const PipelineInput& input_;
  const Schedule& schedule_;
  std::vector<int> rank_of_;
  std::vector<Result> forward_, backward_;
  std::vector<std::vector<Result*>> unsent_;  // of each rank
  std::vector<std::size_t> next_;
  std::vector<double> clocks_;
};

double sum_of(const pipeline::ActionCosts& stage) { return stage.forward + stage.of(ActionKind::kBackward); }

double mean_work(const PipelineInput& input) {
  double work = 0;
  for (const auto& stage : input.stages) work += sum_of(stage);
  return work * input.micro_batches / input.ranks;
}

// The slowest rank's work, and the time that the first micro-batch needs to reach the last rank and back: none of it
// where weight gradients fill the gaps.
double by_formula(const PipelineInput& input) {
  const auto chunks = input.stages.size() / input.ranks;
  std::vector<double> work(input.ranks);
  for (std::size_t stage = 0; stage < input.stages.size(); ++stage)
    work[stage % input.ranks] += sum_of(input.stages[stage]);
  const double slowest = *std::max_element(work.begin(), work.end());
  const double mean = std::accumulate(work.begin(), work.end(), 0.0) / input.ranks;
  // DualPipe: (p / 2 - 1) (F + 2 B - 3 W) with F = W = B / 2.
  const double first = input.schedule.starts_with("zb")         ? 0.03 * mean
                       : input.schedule.starts_with("dualpipe") ? mean / 3
                                                                : mean / static_cast<double>(chunks);
  const double messages = 2 * input.message_seconds * input.message_visible * static_cast<double>(chunks);
  return input.micro_batches * (slowest + messages) + (input.ranks - 1) * (first + 2 * input.message_seconds);
}

double peak_of(const std::vector<Action>& actions, const std::vector<double>& stage_bytes) {
  double live = 0, peak = 0;
  for (const auto& action : actions) {
    if (action.kind == ActionKind::kForward) peak = std::max(peak, live += stage_bytes[action.stage]);
    if (has_input_gradient(action.kind)) live -= stage_bytes[action.stage] / 2;
    if (has_weight_gradient(action.kind)) live -= stage_bytes[action.stage] / 2;
  }
  return peak;
}

// As 1F1B, interleaved if a rank has several stages; twice as much for a schedule that fills all gaps.
double peak_by_formula(const PipelineInput& input, int rank, const std::vector<double>& stage_bytes) {
  const auto chunks = static_cast<double>(stage_bytes.size()) / input.ranks;
  if (input.ranks == 1) return std::accumulate(stage_bytes.begin(), stage_bytes.end(), 0.0);
  double in_flight = input.ranks - rank;  // micro-batches
  if (chunks > 1) in_flight = ((chunks - 1) * input.ranks + 2 * (input.ranks - rank - 1) + 1) / chunks;
  if (input.schedule == "zb_h2") in_flight *= 2;
  if (input.schedule == "gpipe") in_flight = input.micro_batches;
  double bytes = 0;
  for (std::size_t stage = rank; stage < stage_bytes.size(); stage += input.ranks) bytes += stage_bytes[stage];
  return bytes * std::min<double>(input.micro_batches, in_flight);
}

}  // namespace

Pipeline::Pipeline(PipelineInput input) : input_(std::move(input)) {
  if (input_.ranks > 1) schedule_ = schedule_of(input_);
}

PipelineSeconds Pipeline::seconds() const {
  PipelineSeconds result{.work = mean_work(input_)};
  result.seconds = input_.ranks == 1 ? result.work
                   : schedule_       ? ScheduleRun(input_, *schedule_).seconds()
                                     : by_formula(input_);
  return result;
}

std::vector<int> Pipeline::ranks_of_stages() const {
  if (schedule_) return pipeline::rank_of_stages(*schedule_);
  std::vector<int> ranks(input_.stages.size());
  for (std::size_t stage = 0; stage < ranks.size(); ++stage) ranks[stage] = static_cast<int>(stage) % input_.ranks;
  return ranks;
}

double Pipeline::peak_bytes(const std::vector<double>& stage_bytes, const std::vector<double>& rank_bytes) const {
  double most = 0;
  for (int rank = 0; rank < input_.ranks; ++rank) {
    const double peak =
        schedule_ ? peak_of(schedule_->actions[rank], stage_bytes) : peak_by_formula(input_, rank, stage_bytes);
    most = std::max(most, peak + rank_bytes[rank]);
  }
  return most;
}

std::vector<double> layers_of_stages(int layers, int ranks, int stages_per_rank) {
  // Middle ranks get one more first, then the first rank.
  std::vector<int> of_rank(ranks, layers / ranks);
  for (int extra = 0; extra < layers % ranks; ++extra) ++of_rank[(extra + 1) % std::max(1, ranks - 1)];
  std::vector<double> of_stage(static_cast<std::size_t>(ranks) * stages_per_rank);
  for (int rank = 0; rank < ranks; ++rank) {
    for (int chunk = 0; chunk < stages_per_rank; ++chunk) {
      const int extra = chunk < of_rank[rank] % stages_per_rank ? 1 : 0;
      of_stage[static_cast<std::size_t>(chunk) * ranks + rank] = of_rank[rank] / stages_per_rank + extra;
    }
  }
  return of_stage;
}

}  // namespace accel::predict
