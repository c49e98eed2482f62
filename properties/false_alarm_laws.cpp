// A program in which nothing is wrong ends without an error and without a finding; each finding has its cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <atomic>
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
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

void expect_clean(const sim::SimulationReport& report) {
  RC_LOG(message_of(report.error));
  for (const auto& finding : report.findings) RC_LOG(finding);
  RC_ASSERT(!report.error);
  RC_ASSERT(!report.diagnosis.has_value());
  RC_ASSERT(report.findings.empty());
}

sim::RankSchedule any_schedule() {
  return {.kind = *rc::gen::element(ScheduleKind::kParallel, ScheduleKind::kParallel, ScheduleKind::kRoundRobin,
                                    ScheduleKind::kRandom, ScheduleKind::kPct),
          .seed = pick<std::uint64_t>(0, 1000),
          .pct_events = 100};
}

// --- clean programs --------------------------------------------------------------------------------------------------

// A collective that is waited for later, in a group of some ranks.
struct LateStep {
  enum class Op { kAllReduce, kBroadcast, kAllGather, kAllToAllUneven, kReduceScatter, kSendRecv, kCount };
  std::size_t group = 0;
  Op op = Op::kAllReduce;
  std::int64_t numel = 1;
  int root = 0, waits_after = 0;
  bool polls = false;
};

struct CleanProgram {
  int num_ranks = 2;
  std::vector<std::vector<int>> groups;
  std::vector<LateStep> late;
  std::vector<CollectiveCall> at_once;  // one behind each late step
};

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
    program.late.push_back({.group = group,
                            .op = static_cast<LateStep::Op>(pick(0, static_cast<int>(LateStep::Op::kCount))),
                            .numel = pick<std::int64_t>(1, 300),
                            .root = pick(0, size),
                            .waits_after = pick(0, 5),
                            .polls = pick(0, 3) == 0});
    auto call = *collective_call(program.num_ranks, 300);
    call.special_values = false;  // a NaN may be lost, which is a finding
    program.at_once.push_back(call);
  }
  return program;
}

struct Late {
  std::vector<c10::intrusive_ptr<c10d::Work>> works;
  at::Tensor input, output;  // read only, written
  std::size_t wait_at = 0;
  bool polls = false;
  at::Tensor may_be_reused = {};
};

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
    for (std::size_t index = pending.size(); index-- > 0;) {  // the last first
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
      (void)pending.back().input.sum();    // what is only read may be read meanwhile
      (void)at::ones({step.numel}).sum();  // another tensor, of memory freed just now perhaps
    }
    perform(program.at_once[index], rank);
    finish_until(index);
  }
  finish_until(program.late.size() + 100);
}

TEST(FalseAlarmLaws, CollectivesOfAllKindsInSeveralGroupsAreClean) {
  expect_property(700, [] {
    const auto program = any_clean_program();
    const auto schedule = any_schedule();
    RC_LOG(fmt::format("{} ranks, {} groups, {}", program.num_ranks, program.groups.size(), name_of(schedule.kind)));
    expect_clean(sim::rehearse({.num_ranks = program.num_ranks, .schedule = schedule},
                               [&](RankContext& rank) { run_clean(program, rank); }));
  });
}

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

// --- findings --------------------------------------------------------------------------------------------------------

struct OddRank {
  int num_ranks = 2, culprit = 0;
};

OddRank any_odd_rank() {
  OddRank odd{.num_ranks = pick(2, 9)};
  odd.culprit = pick(0, odd.num_ranks);
  return odd;
}

using OddProgram = std::function<void(const OddRank&, RankContext&)>;

std::vector<std::string> findings_of(const OddRank& odd, const OddProgram& program) {
  const auto report = sim::rehearse({.num_ranks = odd.num_ranks}, [&](RankContext& rank) { program(odd, rank); });
  RC_LOG(message_of(report.error));
  RC_ASSERT(!report.error);
  for (const auto& finding : report.findings) RC_LOG(finding);
  return report.findings;
}

void expect_finding(const std::vector<std::string>& words, const OddProgram& program) {
  expect_property(25, [&] {
    const auto odd = any_odd_rank();
    const auto findings = findings_of(odd, program);
    RC_ASSERT(findings.size() == 1u);
    for (const auto& word : words) RC_ASSERT(findings[0].find(word) != std::string::npos);
  });
}

void expect_no_finding(const OddProgram& program) {
  expect_property(25, [&] { RC_ASSERT(findings_of(any_odd_rank(), program).empty()); });
}

void reduce_with_nan(RankContext& rank, ReduceOp op, bool has_nan) {
  auto tensor = at::ones({64});
  if (has_nan) tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  rank.world.all_reduce(tensor, op).wait();
}

TEST(FindingsTest, NanThatMaxAndMinLoseIsTold) {
  for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
    expect_finding(
        {"all_reduce #0 of group world", "NaN is lost", op == ReduceOp::kMax ? "max" : "min"},
        [op](const OddRank& odd, RankContext& rank) { reduce_with_nan(rank, op, rank.rank == odd.culprit); });
    expect_no_finding([op](const OddRank&, RankContext& rank) { reduce_with_nan(rank, op, /*has_nan=*/true); });
    expect_no_finding([op](const OddRank&, RankContext& rank) { reduce_with_nan(rank, op, /*has_nan=*/false); });
  }
  expect_no_finding(
      [](const OddRank& odd, RankContext& rank) { reduce_with_nan(rank, ReduceOp::kSum, rank.rank == odd.culprit); });
}

// Nothing but NaN of the culprit, in a collective other than all_reduce. Which operand is kept differs by place: some
// are lost.
void lose_nan(std::string_view op, const OddRank& odd, RankContext& rank, c10d::ReduceOp reduction) {
  auto tensor = at::ones({2 * odd.num_ranks, 3});
  if (rank.rank == odd.culprit) tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  auto& group = *rank.world.process_group();
  auto output = at::empty({2, 3});
  std::vector<at::Tensor> tensors{tensor}, outputs{output};
  if (op == "reduce") {
    c10d::ReduceOptions options;
    options.reduceOp = reduction;
    options.rootRank = odd.num_ranks - 1 - odd.culprit;
    group.reduce(tensors, options)->wait();
  } else if (op == "reduce_scatter") {
    std::vector<std::vector<at::Tensor>> inputs{tensor.chunk(odd.num_ranks)};
    group.reduce_scatter(outputs, inputs, {.reduceOp = reduction})->wait();
  } else if (op == "reduce_scatter_tensor") {
    group._reduce_scatter_base(output, tensor, {.reduceOp = reduction})->wait();
  } else {
    group.allreduce_coalesced(tensors, c10d::AllreduceCoalescedOptions{{.reduceOp = reduction}})->wait();
  }
}

TEST(FindingsTest, NanThatOtherReductionsLoseIsTold) {
  for (const std::string op : {"reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced"}) {
    expect_finding({op + " #0 of group world", "NaN is lost in max"},
                   [op](const OddRank& odd, RankContext& rank) { lose_nan(op, odd, rank, c10d::ReduceOp::MAX); });
    expect_no_finding([op](const OddRank& odd, RankContext& rank) { lose_nan(op, odd, rank, c10d::ReduceOp::SUM); });
  }
}

// Of the list form each rank's part has a result of its own.
TEST(FindingsTest, NanThatReduceScatterKeepsInOnePartIsNotTold) {
  expect_no_finding([](const OddRank& odd, RankContext& rank) {
    std::vector<at::Tensor> parts, outputs{at::empty({8})};
    for (int part = 0; part < odd.num_ranks; ++part)
      parts.push_back(at::full({8}, part == odd.culprit ? std::numeric_limits<float>::quiet_NaN() : 1));
    std::vector<std::vector<at::Tensor>> inputs{parts};
    rank.world.process_group()->reduce_scatter(outputs, inputs, {.reduceOp = c10d::ReduceOp::MAX})->wait();
  });
}

TEST(FindingsTest, NanInAnyOfSeveralTensorsIsTold) {
  for (const std::size_t place : {0, 1, 2}) {
    expect_finding({"all_reduce_coalesced #0 of group world", "NaN is lost in min"}, [place](const OddRank& odd,
                                                                                             RankContext& rank) {
      std::vector<at::Tensor> tensors{at::ones({3}), at::ones({3}), at::ones({3})};
      // Over several chunks of the ring: that of the last rank to add its own is kept.
      tensors[place] = at::full({64}, rank.rank == odd.culprit ? std::numeric_limits<float>::quiet_NaN() : 1);
      rank.world.process_group()
          ->allreduce_coalesced(tensors, c10d::AllreduceCoalescedOptions{{.reduceOp = c10d::ReduceOp::MIN}})
          ->wait();
    });
  }
}

// The culprit of `odd` is the root.
at::Tensor reduced_to(const OddRank& odd, RankContext& rank) {
  std::vector<at::Tensor> tensors{at::ones({5})};
  c10d::ReduceOptions options;
  options.rootRank = odd.culprit;
  rank.world.process_group()->reduce(tensors, options)->wait();
  return tensors[0];
}

TEST(FindingsTest, ReadingWhatReduceLeavesOnOthersThanTheRootIsTold) {
  expect_finding({"reduce #0 of group world", "is not the root", "aten::sum"},
                 [](const OddRank& odd, RankContext& rank) {
                   const auto tensor = reduced_to(odd, rank);
                   if (rank.rank == (odd.culprit + 1) % odd.num_ranks) (void)tensor.sum();
                 });
  expect_no_finding([](const OddRank& odd, RankContext& rank) {
    const auto tensor = reduced_to(odd, rank);
    if (rank.rank == odd.culprit) (void)tensor.sum();
  });
  expect_no_finding([](const OddRank& odd, RankContext& rank) {
    auto tensor = reduced_to(odd, rank);
    tensor.zero_();
    (void)tensor.sum();
  });
  expect_no_finding([](const OddRank& odd, RankContext& rank) {
    auto tensor = reduced_to(odd, rank);
    rank.world.broadcast(tensor, odd.culprit).wait();  // overwritten by the root's
    (void)tensor.sum();
  });
}

void train_and_draw(RankContext& rank, const std::function<void(int step)>& draw, bool own_seed = false) {
  Accelerator accelerator({}, rank);
  at::manual_seed(own_seed ? 10 + rank.rank : 7);
  torch::nn::Linear net(2, 1);
  torch::optim::SGD sgd(net->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 4; ++step) {
    accelerator.backward(model(at::ones({2, 2})).mean());
    draw(step);
    optimizer.step();
    optimizer.zero_grad();
  }
}

TEST(FindingsTest, GeneratorsThatPartAreTold) {
  const auto check = [](int num_ranks, int culprit) {
    const auto report = sim::rehearse({.num_ranks = num_ranks}, [&](RankContext& rank) {
      train_and_draw(rank, [&](int step) {
        if (step == 2 && rank.rank == culprit) (void)at::rand({1});
      });
    });
    EXPECT_EQ(message_of(report.error), "");
    EXPECT_THAT(report.findings,
                ElementsAre(AllOf(HasSubstr("optimizer_step #2"), HasSubstr("rank " + std::to_string(culprit) + " "))));
  };
  for (int num_ranks = 3; num_ranks < 7; ++num_ranks) {
    for (int culprit = 0; culprit < num_ranks; ++culprit) check(num_ranks, culprit);
  }
}

// Normal numbers are made in pairs, of which a generator keeps the second.
TEST(FindingsTest, GeneratorsOfWhichOneKeepsANumberAreTold) {
  expect_finding({"optimizer_step #2", "draw different numbers"}, [](const OddRank& odd, RankContext& rank) {
    train_and_draw(rank, [&](int step) {
      for (int draw = 0; step == 2 && draw < (rank.rank == odd.culprit ? 2 : 1); ++draw) (void)at::randn({1});
    });
  });
}

TEST(ReplicaVoteTest, TheFirstParameterThatDiffersIsNamedInAnyOfSeveralModels) {
  const auto run = [](int culprits_model) {
    return sim::rehearse({.num_ranks = 3}, [&](RankContext& rank) {
      Accelerator accelerator({}, rank);
      torch::nn::Linear first(2, 1), second(3, 1);
      auto parameters = first->parameters();
      for (const auto& parameter : second->parameters()) parameters.push_back(parameter);
      torch::optim::SGD sgd(parameters, 0.01);
      auto [model, other, optimizer] = accelerator.prepare(first, second, sgd);
      accelerator.backward((model(at::ones({2, 2})) + other(at::ones({2, 3}))).mean());
      const c10::NoGradGuard no_grad;
      if (rank.rank == 1) (culprits_model == 0 ? first : second)->weight.add_(1);
      optimizer.step();
    });
  };
  EXPECT_THAT(message_of(run(0).error),
              HasSubstr("rank 1 has other bits than the rest, first in parameter weight (Float [1, 2])"));
  EXPECT_THAT(message_of(run(1).error),
              HasSubstr("rank 1 has other bits than the rest, first in parameter weight (Float [1, 3])"));
}

TEST(FindingsTest, GeneratorsThatDrawAlikeOrWereNeverEqualAreNot) {
  expect_no_finding([](const OddRank&, RankContext& rank) { train_and_draw(rank, [](int) { (void)at::rand({3}); }); });
  expect_no_finding([](const OddRank&, RankContext& rank) {
    train_and_draw(
        rank, [&](int) { (void)at::rand({1 + rank.rank}); }, /*own_seed=*/true);
  });
}

}  // namespace
}  // namespace accel::testing::false_alarm_laws
