// Each finding of the simulator has its cause, and no finding is reported without one. Findings are not errors: the
// program runs to its end, but a real run would give wrong or different results. Every test therefore has clean
// twins.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <limits>

#include "reference/accelerator/accelerator.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing::finding_laws {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rank that behaves differently. Every position matters, because Gloo's ring treats no two ranks alike.
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

TEST(FindingsTest, NanThatMaxAndMinLoseIsReported) {
  for (const auto op : {ReduceOp::kMax, ReduceOp::kMin}) {
    expect_finding(
        {"all_reduce #0 of group world", "NaN is lost", op == ReduceOp::kMax ? "max" : "min"},
        [op](const OddRank& odd, RankContext& rank) { reduce_with_nan(rank, op, rank.rank == odd.culprit); });
    // If every rank has a NaN the result has one too, so nothing is lost.
    expect_no_finding([op](const OddRank&, RankContext& rank) { reduce_with_nan(rank, op, /*has_nan=*/true); });
    expect_no_finding([op](const OddRank&, RankContext& rank) { reduce_with_nan(rank, op, /*has_nan=*/false); });
  }
  expect_no_finding(
      [](const OddRank& odd, RankContext& rank) { reduce_with_nan(rank, ReduceOp::kSum, rank.rank == odd.culprit); });
}

// Only the culprit contributes NaNs, in a collective other than all_reduce. max and min keep one operand of a
// comparison with NaN, and which one depends on the position in the ring, so some positions lose the NaN.
void lose_nan(std::string_view op, const OddRank& odd, RankContext& rank, c10d::ReduceOp reduction) {
  auto tensor = at::ones({2 * odd.num_ranks, 3});
  if (rank.rank == odd.culprit) tensor.fill_(std::numeric_limits<float>::quiet_NaN());
  auto& group = *rank.world.process_group();
  auto output = at::empty({2, 3});
  std::vector<at::Tensor> tensors{tensor}, outputs{output};
  if (op == "reduce") {
    c10d::ReduceOptions options;
    options.reduceOp = reduction;
    // Any rank may be the root, and it differs from the culprit in most cases.
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

TEST(FindingsTest, NanThatOtherReductionsLoseIsReported) {
  for (const std::string op : {"reduce", "reduce_scatter", "reduce_scatter_tensor", "all_reduce_coalesced"}) {
    expect_finding({op + " #0 of group world", "NaN is lost in max"},
                   [op](const OddRank& odd, RankContext& rank) { lose_nan(op, odd, rank, c10d::ReduceOp::MAX); });
    expect_no_finding([op](const OddRank& odd, RankContext& rank) { lose_nan(op, odd, rank, c10d::ReduceOp::SUM); });
  }
}

// In the list form each rank's part has its own result, so a NaN in every rank's copy of one part is kept.
TEST(FindingsTest, NanThatReduceScatterKeepsInOnePartIsNotReported) {
  expect_no_finding([](const OddRank& odd, RankContext& rank) {
    std::vector<at::Tensor> parts, outputs{at::empty({8})};
    for (int part = 0; part < odd.num_ranks; ++part)
      parts.push_back(at::full({8}, part == odd.culprit ? std::numeric_limits<float>::quiet_NaN() : 1));
    std::vector<std::vector<at::Tensor>> inputs{parts};
    rank.world.process_group()->reduce_scatter(outputs, inputs, {.reduceOp = c10d::ReduceOp::MAX})->wait();
  });
}

TEST(FindingsTest, NanInAnyOfSeveralTensorsIsReported) {
  for (const std::size_t place : {0, 1, 2}) {
    expect_finding({"all_reduce_coalesced #0 of group world", "NaN is lost in min"}, [place](const OddRank& odd,
                                                                                             RankContext& rank) {
      std::vector<at::Tensor> tensors{at::ones({3}), at::ones({3}), at::ones({3})};
      // 64 elements span several chunks of the ring. In each chunk the last rank that adds its operand wins, so the
      // NaN is lost in some chunk whoever the culprit is.
      tensors[place] = at::full({64}, rank.rank == odd.culprit ? std::numeric_limits<float>::quiet_NaN() : 1);
      rank.world.process_group()
          ->allreduce_coalesced(tensors, c10d::AllreduceCoalescedOptions{{.reduceOp = c10d::ReduceOp::MIN}})
          ->wait();
    });
  }
}

// Reduces to the culprit of `odd` as the root.
at::Tensor reduced_to(const OddRank& odd, RankContext& rank) {
  std::vector<at::Tensor> tensors{at::ones({5})};
  c10d::ReduceOptions options;
  options.rootRank = odd.culprit;
  rank.world.process_group()->reduce(tensors, options)->wait();
  return tensors[0];
}

// Gloo leaves partial sums in the buffers of the other ranks, and NCCL leaves them unchanged. No program may use
// them.
TEST(FindingsTest, ReadingTheBufferOfReduceOnOtherRanksThanTheRootIsReported) {
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
    rank.world.broadcast(tensor, odd.culprit).wait();  // overwrites the partial sums
    (void)tensor.sum();
  });
}

// Trains for four steps and calls `draw` between backward and the optimizer's step, where replicas are compared.
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

// One extra draw on one rank changes no parameter yet. It makes dropout masks and shuffles differ later on.
TEST(FindingsTest, GeneratorsThatDivergeAreReported) {
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
  // At least three ranks are needed for a majority that names the culprit; all positions are tried.
  for (int num_ranks = 3; num_ranks < 7; ++num_ranks) {
    for (int culprit = 0; culprit < num_ranks; ++culprit) check(num_ranks, culprit);
  }
}

// Box-Muller makes normal numbers in pairs, and the generator caches the second one. Two generators can agree in
// their engine and differ in the cached number alone.
TEST(FindingsTest, GeneratorsThatDifferInTheCachedNormalAreReported) {
  expect_finding({"optimizer_step #2", "draw different numbers"}, [](const OddRank& odd, RankContext& rank) {
    train_and_draw(rank, [&](int step) {
      for (int draw = 0; step == 2 && draw < (rank.rank == odd.culprit ? 2 : 1); ++draw) (void)at::randn({1});
    });
  });
}

// Both models have a parameter called "weight", so the shape tells which one the message means.
TEST(ReplicaComparisonTest, TheFirstParameterThatDiffersIsNamedInAnyOfSeveralModels) {
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
              HasSubstr("rank 1 differs from the rest, first in parameter weight (Float [1, 2])"));
  EXPECT_THAT(message_of(run(1).error),
              HasSubstr("rank 1 differs from the rest, first in parameter weight (Float [1, 3])"));
}

TEST(FindingsTest, GeneratorsThatDrawAlikeOrWereNeverEqualAreNotReported) {
  expect_no_finding([](const OddRank&, RankContext& rank) { train_and_draw(rank, [](int) { (void)at::rand({3}); }); });
  // Ranks with their own seed draw different numbers on purpose, as device_specific seeding does.
  expect_no_finding([](const OddRank&, RankContext& rank) {
    train_and_draw(
        rank, [&](int) { (void)at::rand({1 + rank.rank}); }, /*own_seed=*/true);
  });
}

// --- levels of checks ------------------------------------------------------------------------------------------------

// A program that one check finds fault with, and what it computes in spite of it.
struct Mistake {
  std::string check;
  std::function<at::Tensor(const OddRank&, RankContext&)> run;
};

at::Tensor read_before_wait(const OddRank& odd, RankContext& rank) {
  auto tensor = at::ones({8});
  std::vector<at::Tensor> tensors{tensor};
  const auto work = rank.world.process_group()->allreduce(tensors);
  if (rank.rank == odd.culprit) (void)tensor.add(1);
  work->wait();
  return tensor;
}

at::Tensor read_partial_sums(const OddRank& odd, RankContext& rank) {
  const auto tensor = reduced_to(odd, rank);
  const bool reads = rank.rank == odd.culprit || rank.rank == (odd.culprit + 1) % odd.num_ranks;
  return reads ? tensor.add(1) : at::ones({5});
}

at::Tensor lose_a_nan(const OddRank& odd, RankContext& rank) {
  auto tensor = at::full({64}, rank.rank == odd.culprit ? std::numeric_limits<float>::quiet_NaN() : 1);
  rank.world.all_reduce(tensor, ReduceOp::kMax).wait();
  return tensor.isnan().logical_not();
}

at::Tensor draw_apart(const OddRank& odd, RankContext& rank) {
  train_and_draw(rank, [&](int step) {
    if (step == 2 && rank.rank == odd.culprit) (void)at::rand({1});
  });
  return at::ones({1});
}

at::Tensor part_replicas(const OddRank& odd, RankContext& rank) {
  Accelerator accelerator({}, rank);
  torch::nn::Linear linear(2, 1);
  torch::optim::SGD sgd(linear->parameters(), 0.01);
  auto [model, optimizer] = accelerator.prepare(linear, sgd);
  for (int step = 0; step < 3; ++step) {
    accelerator.backward(model(at::ones({2, 2})).mean());
    const c10::NoGradGuard no_grad;
    if (rank.rank == odd.culprit) linear->weight.add_(1);
    optimizer.step();
    optimizer.zero_grad();
  }
  return at::ones({1});
}

const std::vector<Mistake>& mistakes() {
  static const std::vector<Mistake> all{{"races", read_before_wait},
                                        {"partial_sums", read_partial_sums},
                                        {"lost_nan", lose_a_nan},
                                        {"generators", draw_apart},
                                        {"replicas", part_replicas}};
  return all;
}

TEST(CheckLevelsTest, EveryLevelDoesWhatItSays) {
  expect_property(25, [] {
    const auto& mistake = pick_from(mistakes());
    const auto odd = any_odd_rank();
    std::vector<at::Tensor> results;
    std::map<std::string, sim::SimulationReport> reports;
    for (const auto* level : {"off", "finding", "error"}) {
      std::vector<at::Tensor> of_ranks(odd.num_ranks);
      reports[level] =
          sim::rehearse({.num_ranks = odd.num_ranks, .checks = sim::check_levels(mistake.check + "=" + level)},
                        [&](RankContext& rank) { of_ranks[rank.rank] = mistake.run(odd, rank); });
      if (std::string_view(level) != "error") results.push_back(at::cat(of_ranks));
    }
    const auto name = "[" + mistake.check + "]";
    RC_LOG(name);
    RC_ASSERT(!reports["off"].error && reports["off"].findings.empty());
    RC_ASSERT(!reports["finding"].error && reports["finding"].findings.size() == 1u);
    RC_ASSERT(reports["finding"].findings[0].ends_with(name));
    RC_ASSERT(message_of(reports["error"].error).find(name) != std::string::npos);
    RC_ASSERT(reports["error"].findings.empty());
    RC_ASSERT(results[0].equal(results[1]));
  });
}

}  // namespace
}  // namespace accel::testing::finding_laws
