// Pipeline schedules: each is complete, and runs to its end where its proof says so; what the proof refuses does not.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <sstream>

#include "reference/core/input/listed.hpp"
#include "reference/pipeline/schedules/schedule_check.hpp"
#include "reference/pipeline/schedules/schedule_csv.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::pipeline_schedule_laws {
namespace {

using namespace pipeline;

// --- generators ------------------------------------------------------------------------------------------------------

const ScheduleKind& any_kind() {
  return pick_from(
             std::vector<std::reference_wrapper<const ScheduleKind>>(schedule_kinds().begin(), schedule_kinds().end()))
      .get();
}

// Sizes for which the schedule exists.
Schedule any_schedule(const ScheduleKind& kind = any_kind()) {
  ScheduleSizes sizes{.ranks = pick(1, 9)};
  const bool is_looped = kind.name == "gpipe" || kind.name.starts_with("interleaved");
  sizes.stages = sizes.ranks * (is_looped ? pick(1, 5) : kind.default_stages_per_rank);
  sizes.micro_batches = pick(1, 25);
  if (kind.name.starts_with("interleaved"))
    sizes.micro_batches -= sizes.micro_batches % std::max(1, sizes.micro_batches / sizes.ranks);
  if (kind.name == "dualpipe_v") sizes.micro_batches = std::max(sizes.micro_batches, sizes.stages);
  return make_schedule(kind.name, sizes);
}

std::optional<int> any_capacity() { return pick_from<std::optional<int>>({std::nullopt, 0, 1, 2, 5}); }

// A random order of everything that a rank has to do, in which nothing precedes what it needs of the same rank. Ranks
// may wait for each other.
Schedule any_plan() {
  Schedule schedule{.name = "any", .sizes = {.stages = pick(2, 6), .ranks = pick(2, 4), .micro_batches = pick(1, 5)}};
  std::vector<int> rank_of(schedule.sizes.stages);
  for (int stage = 0; stage < schedule.sizes.stages; ++stage)
    rank_of[stage] = stage < schedule.sizes.ranks ? stage : pick(0, schedule.sizes.ranks);
  schedule.sizes.stages = std::max(schedule.sizes.stages, schedule.sizes.ranks);
  rank_of.resize(schedule.sizes.stages);
  for (int stage = 0; stage < schedule.sizes.ranks; ++stage) rank_of[stage] = stage;
  const bool is_split = one_in(2), is_near_order = one_in(2);
  for (int rank = 0; rank < schedule.sizes.ranks; ++rank) {
    std::vector<Action> waiting, order;
    const auto is_done = [&](ActionKind kind, int stage, int micro_batch) {
      return std::find(order.begin(), order.end(), Action{kind, stage, micro_batch}) != order.end();
    };
    for (int micro_batch = 0; micro_batch < schedule.sizes.micro_batches; ++micro_batch) {
      for (int stage = 0; stage < schedule.sizes.stages; ++stage) {
        if (rank_of[stage] != rank) continue;
        waiting.push_back({ActionKind::kForward, stage, micro_batch});
        waiting.push_back({is_split ? ActionKind::kBackwardInput : ActionKind::kBackward, stage, micro_batch});
        if (is_split) waiting.push_back({ActionKind::kBackwardWeight, stage, micro_batch});
      }
    }
    const auto gradient = is_split ? ActionKind::kBackwardInput : ActionKind::kBackward;
    const auto is_ready = [&](const Action& action) {
      const int stage = action.stage, micro_batch = action.micro_batch;
      const auto of_this_rank = [&](int other) {
        return other >= 0 && other < schedule.sizes.stages && rank_of[other] == rank;
      };
      if (action.kind == ActionKind::kForward)
        return !of_this_rank(stage - 1) || is_done(ActionKind::kForward, stage - 1, micro_batch);
      if (action.kind == ActionKind::kBackwardWeight) return is_done(gradient, stage, micro_batch);
      return is_done(ActionKind::kForward, stage, micro_batch) &&
             (!of_this_rank(stage + 1) || is_done(gradient, stage + 1, micro_batch));
    };
    while (!waiting.empty()) {
      std::vector<std::size_t> ready;
      for (std::size_t index = 0; index < waiting.size(); ++index) {
        if (is_ready(waiting[index])) ready.push_back(index);
      }
      const auto chosen = is_near_order && !one_in(4) ? ready.front() : pick_from(ready);
      order.push_back(waiting[chosen]);
      waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(chosen));
    }
    schedule.actions.push_back(order);
  }
  return schedule;
}

// --- a rank at a time -----------------------------------------------------------------------------------------------

// Runs a table with messages, in a random order of the ranks. Returns whether all ranks reach their ends.
bool runs_to_end(const Schedule& schedule, std::optional<int> capacity) {
  const auto rank_of = rank_of_stages(schedule);
  const int num_ranks = schedule.sizes.ranks;
  std::vector<std::size_t> next(num_ranks);
  std::vector<std::vector<Action>> posted(num_ranks);
  std::map<std::pair<int, int>, std::vector<Action>> sent;  // the receives of messages, by channel
  const auto contains = [](const std::vector<Action>& actions, const Action& action) {
    return std::find(actions.begin(), actions.end(), action) != actions.end();
  };
  const auto step = [&](int rank) {
    const auto& action = schedule.actions[rank][next[rank]];
    if (is_receive(action.kind)) posted[rank].push_back(action);
    if (is_send(action.kind)) {
      const auto receive = other_end_of(action);
      const int other = rank_of[receive.stage];
      auto& messages = sent[{rank, other}];
      const auto num_unreceived = std::count_if(
          messages.begin(), messages.end(), [&](const Action& earlier) { return !contains(posted[other], earlier); });
      if (capacity && !contains(posted[other], receive) && num_unreceived >= *capacity) return false;
      messages.push_back(receive);
    }
    if (is_compute(action.kind)) {
      const auto arrived = [&](ActionKind kind, int from_stage) {
        const int from = rank_of[from_stage];
        return from == rank || contains(sent[{from, rank}], {kind, action.stage, action.micro_batch});
      };
      if (action.kind == ActionKind::kForward && action.stage > 0 &&
          !arrived(ActionKind::kReceiveForward, action.stage - 1))
        return false;
      if (has_input_gradient(action.kind) && action.stage + 1 < schedule.sizes.stages &&
          !arrived(ActionKind::kReceiveBackward, action.stage + 1))
        return false;
    }
    ++next[rank];
    return true;
  };
  std::set<int> stuck;
  while (static_cast<int>(stuck.size()) < num_ranks) {
    const int rank = pick(0, num_ranks);
    if (next[rank] < schedule.actions[rank].size() && step(rank))
      stuck.clear();
    else
      stuck.insert(rank);
  }
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (next[rank] < schedule.actions[rank].size()) return false;
  }
  return true;
}

// --- laws ------------------------------------------------------------------------------------------------------------

TEST(PipelineScheduleLaws, SchedulesAreCompleteAndFreeOfDeadlock) {
  expect_property(300, [] {
    const auto schedule = any_schedule();
    RC_LOG(schedule.name);
    const auto check = check_schedule(schedule, {.send_capacity = any_capacity()});
    RC_LOG(check.text());
    RC_ASSERT(check.is_ok());
    RC_ASSERT(check.notes.empty());
    RC_ASSERT(check_schedule(schedule, {.receives = Receives::kDeferred}).is_ok());
  });
}

TEST(PipelineScheduleLaws, BubblesAndLiveActivationsAreThoseOfTheFormulas) {
  expect_property(200, [] {
    const auto& kind = schedule_kind(pick_from({"gpipe", "1f1b", "zb_h1"}));
    const auto schedule = make_schedule(kind.name, [] {
      const int ranks = pick(1, 17);
      return ScheduleSizes{.stages = ranks, .ranks = ranks, .micro_batches = ranks + pick(0, 40)};
    }());
    const double ranks = schedule.sizes.ranks, micro_batches = schedule.sizes.micro_batches;
    const double forward = kind.name == "zb_h1" ? 1 : pick(1, 9), backward = kind.name == "zb_h1" ? 1 : pick(1, 9);
    const auto check = check_schedule(schedule, {.costs = {{forward, backward, forward == 1 ? 1 : 0.5}}});
    const auto bubble = check.times.bubble;
    const auto expected = kind.name == "zb_h1" ? (ranks - 1) / (3 * micro_batches + ranks - 1)
                                               : (ranks - 1) / (micro_batches + ranks - 1);
    RC_ASSERT(std::abs(bubble - expected) < 1e-12);
    const auto& peaks = check.peak_activations;
    for (int rank = 0; rank < schedule.sizes.ranks; ++rank)
      RC_ASSERT(peaks[rank] == (kind.name == "gpipe"  ? schedule.sizes.micro_batches
                                : kind.name == "1f1b" ? schedule.sizes.ranks - rank
                                                      : schedule.sizes.ranks));
  });
}

TEST(PipelineScheduleLaws, APlanRunsToItsEndIfItsProofSaysSo) {
  int num_refused = 0, num_passed = 0;
  expect_property(2000, [&] {
    const auto plan = any_plan();
    const auto capacity = any_capacity();
    const auto receives = pick_from({Receives::kEager, Receives::kDeferred});
    const auto check = check_schedule(plan, {.send_capacity = capacity, .receives = receives});
    RC_LOG(check.text());
    RC_ASSERT(check.problems.empty());
    (check.is_ok() ? num_passed : num_refused) += 1;
    RC_ASSERT(runs_to_end(check.run, capacity) == check.is_ok());
  });
  EXPECT_GT(num_refused, num_passed / 10);
  EXPECT_GT(num_passed, num_refused / 10);
}

// --- on simulated ranks ---------------------------------------------------------------------------------------------

// Runs the messages of a table as one-element tensors that name the message, and checks that each is the right one.
void run_messages(const Schedule& schedule, const RankContext& rank) {
  const auto rank_of = rank_of_stages(schedule);
  struct Receive {
    at::Tensor value;
    Work work;
  };
  std::map<std::string, Receive> receives;
  std::vector<Work> sends;
  const auto wait_for = [&](ActionKind kind, const Action& action) {
    const auto receive = receives.find(to_string({kind, action.stage, action.micro_batch}));
    if (receive == receives.end()) return;
    receive->second.work.wait();
    const auto id =
        (action.stage * schedule.sizes.micro_batches + action.micro_batch) * 2 + (kind == ActionKind::kReceiveForward);
    check_state(receive->second.value.item<int>() == id, "{} received another message", to_string(action));
  };
  for (const auto& action : schedule.actions[rank.rank]) {
    if (is_send(action.kind)) {
      const auto receive = other_end_of(action);
      const auto id = (receive.stage * schedule.sizes.micro_batches + receive.micro_batch) * 2 +
                      (receive.kind == ActionKind::kReceiveForward);
      auto value = torch::full({1}, id, torch::kInt);
      rank.world.send(value, rank_of[receive.stage], /*tag=*/id).wait();
    } else if (is_receive(action.kind)) {
      const auto id = (action.stage * schedule.sizes.micro_batches + action.micro_batch) * 2 +
                      (action.kind == ActionKind::kReceiveForward);
      auto& receive = receives[to_string(action)];
      receive.value = torch::zeros({1}, torch::kInt);
      receive.work = rank.world.recv(receive.value, rank_of[other_end_of(action).stage], /*tag=*/id);
    } else if (action.kind == ActionKind::kForward) {
      wait_for(ActionKind::kReceiveForward, action);
    } else if (has_input_gradient(action.kind)) {
      wait_for(ActionKind::kReceiveBackward, action);
    }
  }
}

// 200 plans that pass and 200 that are refused, each under random schedules of the ranks.
TEST(PipelineScheduleLaws, SimulatedRanksEndOrHangAsProven) {
  int num_ended = 0, num_hung = 0;
  expect_property(500, [&] {
    const auto plan = any_plan();
    const auto capacity = any_capacity();
    const auto receives = pick_from({Receives::kEager, Receives::kDeferred});
    const auto check = check_schedule(plan, {.send_capacity = capacity, .receives = receives});
    auto& count = check.is_ok() ? num_ended : num_hung;
    if (count >= num_cases(200)) return;
    ++count;
    const auto& run = check.run;
    for (int seed = 0; seed < 20; ++seed) {
      const auto report =
          sim::rehearse({.num_ranks = plan.sizes.ranks,
                         .schedule = {.kind = sim::ScheduleKind::kRandom, .seed = static_cast<std::uint64_t>(seed)},
                         .send_capacity = capacity},
                        [&](RankContext& rank) { run_messages(run, rank); });
      std::ostringstream table;
      write_schedule(table, run);
      RC_LOG(table.str());
      RC_LOG(fmt::format("send capacity {}, seed {}: {}", capacity ? std::to_string(*capacity) : "unbounded", seed,
                         check.text()));
      RC_ASSERT((report.error == nullptr) == check.is_ok());
      if (!check.is_ok()) RC_ASSERT(report.diagnosis.has_value());
    }
  });
  EXPECT_GE(num_ended, 100);
  EXPECT_GE(num_hung, 100);
}

// Each entry of the cycle names the rank of the next one.
TEST(PipelineScheduleLaws, ACycleIsClosed) {
  expect_property(500, [] {
    const auto check = check_schedule(any_plan(), {.send_capacity = 0, .receives = Receives::kDeferred});
    for (std::size_t index = 0; index < check.cycle.size(); ++index) {
      const auto& next = check.cycle[(index + 1) % check.cycle.size()];
      const auto waits_for = check.cycle[index].substr(check.cycle[index].find(" of ") + 4);
      RC_ASSERT(next.starts_with(waits_for + " waits in "));
    }
    if (!check.is_ok()) RC_ASSERT(check.cycle.size() >= 2u);
  });
}

// Removes, repeats, renames or moves one action. Returns a text that names it.
std::string damage(Schedule& schedule) {
  int rank = pick(0, schedule.sizes.ranks);
  while (schedule.actions[rank].empty()) rank = (rank + 1) % schedule.sizes.ranks;
  auto& actions = schedule.actions[rank];
  const auto place = actions.begin() + pick<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(actions.size()));
  const auto action = *place;
  const auto what = pick(0, 4);
  if (what == 0) actions.erase(place);
  if (what == 1)
    actions.insert(actions.begin() + pick<std::ptrdiff_t>(0, static_cast<std::ptrdiff_t>(actions.size()) + 1), action);
  if (what == 2) place->micro_batch = schedule.sizes.micro_batches;
  if (what == 3) {
    actions.erase(place);
    schedule.actions[(rank + 1) % schedule.sizes.ranks].push_back(action);
  }
  return to_string(action);
}

TEST(PipelineScheduleLaws, DamageIsFoundAndNamed) {
  expect_property(1000, [] {
    auto schedule = any_schedule();
    RC_PRE(schedule.sizes.ranks > 1);
    if (one_in(2)) schedule = with_messages(schedule);
    const auto named = damage(schedule);
    const auto check = check_schedule(schedule, {.send_capacity = any_capacity()});
    RC_LOG(named);
    RC_LOG(check.text());
    RC_ASSERT(!check.is_ok());
    RC_ASSERT(!check.problems.empty());
    RC_ASSERT(check.problems.size() > kListedMax || check.text().find(named) != std::string::npos ||
              check.text().find(" has this stage") != std::string::npos);
  });
}

TEST(PipelineScheduleLaws, AFileHasTheScheduleThatWasWritten) {
  expect_property(300, [] {
    auto schedule = one_in(2) ? any_schedule() : any_plan();
    if (one_in(2)) schedule = with_messages(schedule);
    std::stringstream file;
    write_schedule(file, schedule);
    const auto read = read_schedule(file, schedule.name);
    RC_ASSERT(read.actions == schedule.actions);
    RC_ASSERT(read.sizes.stages == schedule.sizes.stages);
    RC_ASSERT(read.sizes.ranks == schedule.sizes.ranks);
    RC_ASSERT(read.sizes.micro_batches == schedule.sizes.micro_batches);
    for (int rank = 0; rank < schedule.sizes.ranks; ++rank)
      RC_ASSERT(cells_of(read.actions[rank]) == cells_of(schedule.actions[rank]));
  });
}

}  // namespace
}  // namespace accel::testing::pipeline_schedule_laws
