// A training on simulated ranks of which any end at any moment, and are started anew, under random schedules: all that
// are left end with the bits of an undisturbed training.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "reference/accelerator/accelerator.hpp"
#include "reference/accelerator/elastic_run.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/faults/fault_injector.hpp"
#include "tests/support/budget.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::elastic_plans_test {
namespace {

namespace nn = torch::nn;
using sim::Fault;
using sim::FaultKind;
using sim::When;

constexpr int kEpochs = 2, kSamples = 33, kBatch = 2;

struct Numbers {
  [[nodiscard]] std::int64_t size() const { return kSamples; }
  [[nodiscard]] std::tuple<at::Tensor, at::Tensor> get(std::int64_t index) const {
    const auto value = static_cast<float>(index);
    return {at::sin(at::arange(1, 4, at::kFloat) * value), at::full({}, index % 2, at::kLong)};
  }
};

struct Outcome {
  bool is_complete = false;
  std::vector<at::Tensor> state;
  std::vector<double> losses;
  std::vector<std::int64_t> counts;  // of samples that evaluations have seen; 0 before the rank has joined
  std::vector<int> repeated;         // applied updates, by step
  bool has_joined = false;
};

// Batch norm and dropout have a state and random numbers, as has the loop.
void train(RankContext& rank, int logical_ranks, int min_ranks, Outcome& outcome) {
  Accelerator accelerator({}, rank);
  set_seed(3);
  nn::Sequential net(nn::Linear(3, 4), nn::BatchNorm1d(4), nn::Dropout(0.2), nn::Linear(4, 2));
  optim::AdamW adamw(net->parameters(), optim::AdamWOptions{.lr = 0.05});
  DataLoader loader(Numbers(), {.batch_size = kBatch, .shuffle = true});
  DataLoader plain_evaluation(Numbers(), {.batch_size = 5});
  auto [model, optimizer, evaluation] = accelerator.prepare(net, adamw, plain_evaluation);
  accelerator.elastic({.min_ranks = min_ranks, .logical_ranks = logical_ranks}, [&](ElasticRun& run) {
    auto steps = run.steps(loader, kEpochs);
    for (auto& step : steps) {
      net->train();
      const auto loss = step.update(
          [&](auto& batch) {
            const auto& [inputs, targets] = batch;
            return nn::functional::cross_entropy(model(inputs + 0.1 * torch::randn_like(inputs)), targets);
          },
          [&] {
            optimizer.step();
            optimizer.zero_grad();
            outcome.repeated.resize(run.num_steps() + 1);
            ++outcome.repeated.back();
          });
      outcome.losses.push_back(loss.template item<double>());
      if (step.number() + 1 < steps.per_epoch()) continue;
      std::int64_t count = 0;
      outcome.repeated.resize(run.num_steps());
      run.repeatable([&] {
        net->eval();
        const c10::NoGradGuard no_grad;
        count = 0;
        for (auto& [inputs, targets] : evaluation)
          count += accelerator.gather_for_metrics(model(inputs).argmax(1) * 0 + targets).numel();
      });
      outcome.counts.push_back(count);
    }
  });
  for (const auto& parameter : net->parameters()) outcome.state.push_back(parameter.detach().clone());
  for (const auto& buffer : net->buffers()) outcome.state.push_back(buffer.clone());
  outcome.is_complete = true;
}

struct Run {
  sim::SimulationReport report;
  std::vector<Outcome> ranks;
};

Run run_with(int num_ranks, int logical_ranks, int min_ranks, std::vector<Fault> faults, sim::RankSchedule schedule) {
  Run run{.ranks = std::vector<Outcome>(num_ranks)};
  sim::SimulationOptions options{.num_ranks = num_ranks, .schedule = schedule};
  options.checks = {};
  if (!faults.empty()) options.faults = std::make_shared<sim::FaultInjector>(std::move(faults));
  run.report = sim::rehearse(options, [&](RankContext& rank) {
    auto& outcome = run.ranks[rank.rank_in_job];
    outcome = {.has_joined = rank.joins_elastic};
    train(rank, logical_ranks, min_ranks, outcome);
  });
  return run;
}

std::string error_of(const sim::SimulationReport& report) {
  if (!report.error) return "";
  try {
    std::rethrow_exception(report.error);
  } catch (const std::exception& error) {
    return error.what();
  }
}

// A rank that has joined has only the last ones, and 0 before.
template <typename Numbers>
void expect_end_of(const Numbers& numbers, const Numbers& expected, bool has_joined) {
  ASSERT_EQ(numbers.size(), expected.size());
  const auto is_of_this_rank = [&](auto number) { return !has_joined || number != 0; };
  const auto first = std::find_if(numbers.begin(), numbers.end(), is_of_this_rank);
  EXPECT_TRUE(std::equal(first, numbers.end(), expected.begin() + (first - numbers.begin())));
}

void expect_undisturbed(const Run& run, const std::vector<Fault>& faults, const Outcome& expected) {
  ASSERT_EQ(error_of(run.report), "");
  for (int rank = 0; rank < std::ssize(run.ranks); ++rank) {
    const auto& outcome = run.ranks[rank];
    const bool may_end =
        std::any_of(faults.begin(), faults.end(), [&](const Fault& fault) { return fault.rank == rank; });
    EXPECT_TRUE(outcome.is_complete || may_end) << "rank " << rank;
    if (!outcome.is_complete) continue;
    EXPECT_EQ(outcome.losses, expected.losses);
    expect_end_of(outcome.counts, expected.counts, outcome.has_joined);
    expect_end_of(outcome.repeated, expected.repeated, outcome.has_joined);
    for (std::size_t index = 0; index < expected.state.size(); ++index)
      EXPECT_TRUE(at::equal(outcome.state[index], expected.state[index])) << "tensor " << index;
  }
}

class ElasticPlansTest : public ::testing::Test {
 protected:
  const Outcome& undisturbed(int logical_ranks) {
    auto& outcome = undisturbed_[logical_ranks];
    if (!outcome.is_complete) outcome = run_with(1, logical_ranks, 1, {}, {}).ranks.front();
    return outcome;
  }

 private:
  std::map<int, Outcome> undisturbed_;
};

class DrawnPlans {
 public:
  explicit DrawnPlans(std::uint32_t seed) : random_(seed) {}

  int below(int limit) { return static_cast<int>(random_() % static_cast<unsigned>(limit)); }
  std::uint32_t seed() { return random_(); }

  /// Faults that end some of the ranks, but one; with `joins` they are started anew, perhaps, and may end again.
  std::vector<Fault> draw(int num_ranks, bool joins) {
    std::vector<int> order(num_ranks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    std::vector<Fault> faults;
    const int num_victims = 1 + below(num_ranks - 1);
    for (int index = 0; index < num_victims; ++index) {
      for (bool again = true; again; again = joins && below(3) == 0) {
        faults.push_back(end_of(order[index]));
        if (!joins || below(4) == 0) break;
        faults.push_back({.kind = FaultKind::kRankJoin,
                          .rank = order[index],
                          .when = When{When::Unit::kStep, below(kEpochs * 10)},
                          .seconds = 0.2});
      }
    }
    return faults;
  }

 private:
  Fault end_of(int rank) {
    constexpr FaultKind kKinds[] = {FaultKind::kRankLeave, FaultKind::kRankCrashBeforeCollective,
                                    FaultKind::kRankCrashDuringCollective, FaultKind::kRankCrashBeforeOptimizerStep};
    Fault fault{.kind = kKinds[below(4)], .rank = rank};
    // The collectives before the training are those of the first group.
    const bool by_step = fault.kind == FaultKind::kRankCrashBeforeOptimizerStep || below(2) == 0;
    fault.when = When{by_step ? When::Unit::kStep : When::Unit::kCollective, by_step ? below(20) : 20 + below(80)};
    if (fault.kind == FaultKind::kRankLeave) fault.seconds = 0.1;
    return fault;
  }

  std::mt19937 random_;
};

class ElasticPlansOfKindTest : public ElasticPlansTest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(Joins, ElasticPlansOfKindTest, ::testing::Bool());

TEST_P(ElasticPlansOfKindTest, AnyPlanLeavesTheBitsOfAnUndisturbedTraining) {
  const auto seed = std::random_device{}();
  DrawnPlans plans(seed);
  const auto below = [&](int limit) { return plans.below(limit); };
  int num_joined = 0;
  for (int count = 0; count < num_cases(100); ++count) {
    const int num_ranks = 2 + below(15), logical_ranks = num_ranks + below(8);
    const auto faults = plans.draw(num_ranks, /*joins=*/GetParam());
    std::string text;
    for (const auto& fault : faults) text += "\n" + describe(fault);
    const sim::RankSchedule schedule{.kind = below(4) == 0 ? sim::ScheduleKind::kParallel : sim::ScheduleKind::kRandom,
                                     .seed = plans.seed()};
    SCOPED_TRACE(fmt::format("seed {}, case {}: {} ranks, {} logical, schedule {} {}{}", seed, count, num_ranks,
                             logical_ranks, sim::name_of(schedule.kind), schedule.seed, text));
    const auto run = run_with(num_ranks, logical_ranks, 1, faults, schedule);
    expect_undisturbed(run, faults, undisturbed(logical_ranks));
    if (HasFailure()) return;
    num_joined += std::count_if(run.ranks.begin(), run.ranks.end(),
                                [](const auto& rank) { return rank.has_joined && rank.is_complete; });
  }
  if (GetParam()) EXPECT_GT(num_joined, 0);
}

// The reducer of DDP averages over the ranks that are left, with prepared loaders that divide the samples among them.
TEST_F(ElasticPlansTest, AfterwardsTheRanksThatAreLeftTrainAsAWorldOfTheirOwn) {
  std::vector<std::vector<std::int64_t>> samples(4);
  std::vector<std::vector<at::Tensor>> parameters(4);
  const auto faults = std::vector<Fault>{
      {.kind = FaultKind::kRankLeave, .rank = 1, .when = When{When::Unit::kStep, 2}, .seconds = 0.1}};
  const auto report =
      sim::rehearse({.num_ranks = 4, .faults = std::make_shared<sim::FaultInjector>(faults)}, [&](RankContext& rank) {
        const int of_run = rank.rank;
        Accelerator accelerator({}, rank);
        set_seed(3);
        nn::Linear net(3, 2);
        torch::optim::SGD sgd(net->parameters(), 0.1);
        DataLoader loader(Numbers(), {.batch_size = kBatch});
        auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
        accelerator.elastic({.min_ranks = 2, .logical_ranks = 4}, [&](ElasticRun& run) {
          for (auto& step : run.steps(loader)) {
            step.update([&](auto& batch) { return model(std::get<0>(batch)).square().mean(); },
                        [&] {
                          optimizer.step();
                          optimizer.zero_grad();
                        });
          }
          EXPECT_EQ(run.num_changes(), 1);
        });
        EXPECT_EQ(accelerator.num_processes(), 3);
        for (auto& [inputs, targets] : batches) {
          for (std::int64_t row = 0; row < inputs.size(0); ++row)
            samples[of_run].push_back(
                (at::sin(at::arange(kSamples, at::kFloat)) - inputs[row][0]).abs().argmin().item<std::int64_t>());
          accelerator.backward(model(inputs).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
        parameters[of_run] = accelerator.unwrap_model(model)->parameters();
      });
  ASSERT_EQ(error_of(report), "");
  EXPECT_TRUE(samples[1].empty());
  EXPECT_TRUE(at::equal(parameters[0][0], parameters[2][0]));
  EXPECT_TRUE(at::equal(parameters[0][0], parameters[3][0]));
  std::set<std::int64_t> seen;
  for (const auto& of_rank : samples) seen.insert(of_rank.begin(), of_rank.end());
  EXPECT_EQ(seen.size(), kSamples);
  EXPECT_EQ(samples[0].size() + samples[2].size() + samples[3].size(), 36);  // full steps of 3 ranks
}

TEST_F(ElasticPlansTest, BelowMinRanksTheRunEndsAndSaysWhy) {
  const auto run = run_with(
      3, 4, 3, {{.kind = FaultKind::kRankLeave, .rank = 1, .when = When{When::Unit::kStep, 5}, .seconds = 0.1}}, {});
  EXPECT_NE(error_of(run.report).find("fewer ranks than min_ranks are left"), std::string::npos)
      << error_of(run.report);
}

}  // namespace
}  // namespace accel::testing::elastic_plans_test
