// A correct program ends without an error and without a finding, under every schedule. False alarms would make
// people turn the checks off, so this is checked on a thousand random programs (10,000 with --long).
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <numeric>

#include "properties/gen/collective_call.hpp"
#include "properties/gen/small_training.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::false_alarm_laws {
namespace {

using sim::ScheduleKind;

// The run must end without an error, a diagnosis or a finding.
void expect_clean(const sim::SimulationReport& report) {
  RC_LOG(message_of(report.error));
  for (const auto& finding : report.findings) RC_LOG(finding);
  RC_ASSERT(!report.error);
  RC_ASSERT(!report.diagnosis.has_value());
  RC_ASSERT(report.findings.empty());
}

// Mostly parallel ranks, which is the default, but every kind of schedule has to occur.
sim::RankSchedule any_schedule() {
  return {.kind = pick_from({ScheduleKind::kParallel, ScheduleKind::kParallel, ScheduleKind::kRoundRobin,
                             ScheduleKind::kRandom, ScheduleKind::kPct}),
          .seed = pick<std::uint64_t>(0, 1000),
          .pct_events = 100};
}

// A collective that is waited for up to four steps later, in a group of some of the ranks.
struct LateStep {
  enum class Op { kAllReduce, kBroadcast, kAllGather, kAllToAllUneven, kReduceScatter, kSendRecv, kCount };
  std::size_t group = 0;
  Op op = Op::kAllReduce;
  std::int64_t numel = 1;
  int root = 0, waits_after = 0;
  bool polls = false;
};

// A correct program: collectives of all kinds in overlapping groups, some of which are awaited much later.
struct CleanProgram {
  int num_ranks = 2;
  std::vector<std::vector<int>> groups;
  std::vector<LateStep> late;
  std::vector<CollectiveCall> at_once;  // one after each late step
};

// All ranks derive the same calls from it, which is what makes the program correct.
CleanProgram any_clean_program() {
  CleanProgram program{.num_ranks = pick(2, 6)};
  std::vector<int> everyone(program.num_ranks);
  std::iota(everyone.begin(), everyone.end(), 0);
  program.groups.push_back(everyone);
  for (int more = pick(0, 3); more > 0; --more) {
    std::vector<int> ranks;
    for (int rank = 0; rank < program.num_ranks; ++rank) {
      if (pick(0, 2) == 0) ranks.push_back(rank);
    }
    if (!ranks.empty()) program.groups.push_back(ranks);
  }
  for (int count = pick(1, 8); count > 0; --count) {
    const auto group = pick<std::size_t>(0, program.groups.size());
    const int size = static_cast<int>(program.groups[group].size());
    // A rank sends nothing to itself, with which Gloo has no connection.
    const auto num_ops = static_cast<int>(size > 1 ? LateStep::Op::kCount : LateStep::Op::kSendRecv);
    program.late.push_back({.group = group,
                            .op = static_cast<LateStep::Op>(pick(0, num_ops)),
                            .numel = pick<std::int64_t>(1, 300),
                            .root = pick(0, size),
                            .waits_after = pick(0, 5),
                            .polls = pick(0, 3) == 0});
    auto call = *collective_call(program.num_ranks, 300);
    call.special_values = false;  // min and max may lose a NaN, which is a real finding
    program.at_once.push_back(call);
  }
  return program;
}

// A collective that was begun and not yet awaited, with the buffers that must not be touched until then.
struct Late {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  at::Tensor input, output;  // `input` is only read while the collective runs, `output` is written
  std::size_t wait_at = 0;
  bool polls = false;
  at::Tensor may_be_reused = {};
};

// Issues one collective without waiting for it.
Late begin(const LateStep& step, c10d::ProcessGroup& group) {
  using Tensors = std::vector<at::Tensor>;
  const int me = group.getRank(), size = group.getSize();
  const auto n = step.numel;
  Late late{.input = at::arange(n, at::kFloat) + me, .output = at::zeros({n}), .polls = step.polls};
  switch (step.op) {
    case LateStep::Op::kAllReduce: {
      Tensors tensors{late.output};
      late.works = {group.allreduce(tensors)};
      break;
    }
    case LateStep::Op::kBroadcast: {
      Tensors tensors{me == step.root ? late.input : late.output};
      c10d::BroadcastOptions options;
      options.rootRank = step.root;
      late.works = {group.broadcast(tensors, options)};
      late.may_be_reused = tensors[0];
      break;
    }
    case LateStep::Op::kAllGather:
      late.output = at::zeros({n * size});
      late.works = {group._allgather_base(late.output, late.input)};
      break;
    case LateStep::Op::kAllToAllUneven: {
      std::vector<std::int64_t> splits;
      // Splits of 0, 1 or 2 rows are symmetric in `me` and `other`, so sent and received counts agree.
      for (int other = 0; other < size; ++other) splits.push_back((me + other) % 3);
      const auto rows = std::accumulate(splits.begin(), splits.end(), std::int64_t{0});
      late.input = at::ones({rows, n});
      late.output = at::zeros({rows, n});
      auto received = splits;
      late.works = {group.alltoall_base(late.output, late.input, received, splits)};
      break;
    }
    case LateStep::Op::kReduceScatter: {
      late.input = at::ones({n * size});
      c10d::ReduceScatterOptions options;
      late.works = {group._reduce_scatter_base(late.output, late.input, options)};
      break;
    }
    default: {
      Tensors in{late.input}, out{late.output};
      // One ring step of point-to-point messages: every rank sends to the next and receives from the previous one.
      late.works = {group.send(in, (me + 1) % size, 3), group.recv(out, (me + size - 1) % size, 3)};
      break;
    }
  }
  return late;
}

void finish(Late& late) {
  for (const auto& work : late.works) {
    while (late.polls && !work->isCompleted()) {
    }
    work->wait();
  }
  // After wait() a program may do anything with its buffers. A check that forgets to release them would report a
  // race.
  (void)(late.output.sum() + late.input.sum());
  late.output.zero_();
  late.input.zero_();
  if (late.may_be_reused.defined()) late.may_be_reused.fill_(3);
}

void run_clean(const CleanProgram& program, RankContext& rank) {
  std::vector<Group> groups{rank.world};
  for (std::size_t index = 1; index < program.groups.size(); ++index)
    groups.push_back(rank.new_group(program.groups[index]));
  std::vector<Late> pending;
  const auto finish_until = [&](std::size_t now) {
    for (std::size_t index = pending.size(); index-- > 0;) {  // in reverse order, which Gloo allows
      if (pending[index].wait_at > now) continue;
      finish(pending[index]);
      pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(index));
    }
  };
  for (std::size_t index = 0; index < program.late.size(); ++index) {
    const auto& step = program.late[index];
    const auto& members = program.groups[step.group];
    if (std::find(members.begin(), members.end(), rank.rank) != members.end()) {
      pending.push_back(begin(step, *groups[step.group].process_group()));
      pending.back().wait_at = index + step.waits_after;
      (void)pending.back().input.sum();    // inputs may be read while the collective runs
      (void)at::ones({step.numel}).sum();  // the allocator may return memory that was just freed
    }
    perform(program.at_once[index], rank);
    finish_until(index);
  }
  // Adding 100 exceeds every wait_at, so this finishes all that are pending.
  finish_until(program.late.size() + 100);
}

// A checker that reports correct programs is switched off by its users, so false alarms are as bad as missed
// mistakes.
TEST(FalseAlarmLaws, CollectivesOfAllKindsInSeveralGroupsAreClean) {
  expect_property(700, [] {
    const auto program = any_clean_program();
    const auto schedule = any_schedule();
    RC_LOG(fmt::format("{} ranks, {} groups, {}", program.num_ranks, program.groups.size(), name_of(schedule.kind)));
    expect_clean(sim::rehearse({.num_ranks = program.num_ranks, .schedule = schedule},
                               [&](RankContext& rank) { run_clean(program, rank); }));
  });
}

// The same for random trainings: accumulation, uneven ends, hooks and other options.
TEST(FalseAlarmLaws, TrainingsAreClean) {
  expect_property(300, [] {
    const auto training = any_training();
    const auto schedule = any_schedule();
    RC_LOG(describe(training) + ", " + name_of(schedule.kind));
    expect_clean(
        sim::rehearse({.num_ranks = training.num_ranks, .timeout = std::chrono::seconds(60), .schedule = schedule},
                      [&](RankContext& rank) { train(training, rank); }));
  });
}

}  // namespace
}  // namespace accel::testing::false_alarm_laws
