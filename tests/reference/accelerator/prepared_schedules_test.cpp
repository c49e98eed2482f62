// How often a prepared schedule advances: once per batch of all ranks, or once per call. A program that steps it once
// per epoch gets a warning, because its rates would otherwise decay too fast, silently.
#include <gmock/gmock.h>

#include <accel/accel.hpp>
#include <cmath>
#include <mutex>
#include <tuple>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::prepared_schedules_test {
namespace {

using ::testing::AllOf;
using ::testing::Combine;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Values;

constexpr int kEpochs = 2, kStepsPerEpoch = 6;

struct Outcome {
  std::vector<double> rates;
  std::vector<std::string> warnings;  // of all ranks
};

class PreparedSchedulesTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  [[nodiscard]] static int num_ranks() { return std::get<int>(GetParam()); }

  /// Runs `train` on every rank. Its last argument performs a training step without that of a schedule.
  static Outcome outcome_of(const auto& train, const AcceleratorOptions& options = {}) {
    Outcome outcome;
    std::mutex mutex;
    run_ranks(std::get<Backend>(GetParam()), num_ranks(), [&](RankContext& rank) {
      rank.warn = [&](const std::string& text) {
        const std::lock_guard lock(mutex);
        outcome.warnings.push_back(text);
      };
      Accelerator accelerator(options, rank);
      set_seed(3);
      torch::nn::Linear net(2, 1);
      torch::optim::SGD sgd(net->parameters(), /*lr=*/1.0);
      auto prepared = accelerator.prepare(net, sgd);
      const std::function<void()> step = [&] {
        auto& [model, optimizer] = prepared;
        auto window = accelerator.accumulate(model);
        accelerator.backward(model(torch::ones({3, 2})).mean() * 0);
        optimizer.step();
        optimizer.zero_grad();
      };
      train(accelerator, sgd, step);
      const std::lock_guard lock(mutex);
      outcome.rates.push_back(sgd.param_groups().front().options().get_lr());
    });
    return outcome;
  }
  static std::vector<double> on_each_rank(double rate) { return std::vector<double>(num_ranks(), rate); }
};

INSTANTIATE_TEST_SUITE_P(Ranks, PreparedSchedulesTest,
                         Combine(Values(Backend::kSim, Backend::kGlooThreads), Values(1, 2, 4)), [](const auto& info) {
                           return name_of(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
                         });

// The program's factor of 0.5 per epoch becomes one of 0.5 to the power of the number of ranks.
TEST_P(PreparedSchedulesTest, OneStepPerEpochIsReportedOnce) {
  const auto outcome = outcome_of([](Accelerator& accelerator, auto& sgd, const auto& step) {
    StepLR halving(sgd, /*step_size=*/1, /*gamma=*/0.5);
    auto scheduler = accelerator.prepare(halving);
    for (int epoch = 0; epoch < kEpochs; ++epoch) {
      for (int i = 0; i < kStepsPerEpoch; ++i) step();
      scheduler.step();
    }
  });
  EXPECT_EQ(outcome.rates, on_each_rank(std::pow(0.5, kEpochs * num_ranks())));
  if (num_ranks() == 1) {
    EXPECT_THAT(outcome.warnings, IsEmpty());
    return;
  }
  EXPECT_THAT(outcome.warnings,
              ElementsAre(AllOf(HasSubstr("stepped once after 6 steps of its optimizer"),
                                HasSubstr("advances " + std::to_string(num_ranks()) + " times per call"),
                                HasSubstr("call scheduler.step() after each optimizer.step()"),
                                HasSubstr("prepare_scheduler(schedule, {.step_with_optimizer = false})"))));
}

TEST_P(PreparedSchedulesTest, AScheduleThatCountsEpochsStepsOncePerCall) {
  const auto train = [](const Accelerator::PrepareSchedulerOptions& options) {
    return [=](Accelerator& accelerator, auto& sgd, const auto& step) {
      StepLR halving(sgd, /*step_size=*/1, /*gamma=*/0.5);
      auto scheduler = accelerator.prepare_scheduler(halving, options);
      for (int epoch = 0; epoch < kEpochs; ++epoch) {
        for (int i = 0; i < kStepsPerEpoch; ++i) step();
        scheduler.step();
      }
    };
  };
  for (const auto& outcome : {outcome_of(train({.step_with_optimizer = false})),
                              outcome_of(train({.step_with_optimizer = false}), {.gradient_accumulation_steps = 4}),
                              outcome_of(train({}), {.step_scheduler_with_optimizer = false})}) {
    EXPECT_EQ(outcome.rates, on_each_rank(0.25));
    EXPECT_THAT(outcome.warnings, IsEmpty());
  }
  // The option of the call takes precedence.
  const auto with_optimizer =
      outcome_of(train({.step_with_optimizer = true}), {.step_scheduler_with_optimizer = false});
  EXPECT_EQ(with_optimizer.rates, on_each_rank(std::pow(0.5, kEpochs * num_ranks())));
}

// It is stepped with the metric of an evaluation; its patience of one evaluation would be shorter than a call.
TEST_P(PreparedSchedulesTest, AMetricPerEpochIsReportedToo) {
  const auto train = [](const Accelerator::PrepareSchedulerOptions& options) {
    return [=](Accelerator& accelerator, auto& sgd, const auto& step) {
      ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 1});
      auto scheduler = accelerator.prepare_scheduler(plateau, options);
      for (int epoch = 0; epoch < 3; ++epoch) {
        for (int i = 0; i < kStepsPerEpoch; ++i) step();
        scheduler.step(1.0);
      }
    };
  };
  EXPECT_EQ(outcome_of(train({})).warnings.size(), num_ranks() == 1 ? 0U : 1U);
  const auto per_call = outcome_of(train({.step_with_optimizer = false}));
  EXPECT_EQ(per_call.rates, on_each_rank(0.5));
  EXPECT_THAT(per_call.warnings, IsEmpty());
}

// These loops are those that Accelerate's documentation shows, and some that step two optimizers' worth in turn.
TEST_P(PreparedSchedulesTest, OneStepPerUpdateIsNotReported) {
  const auto train = [](int num_updates, const Accelerator::PrepareSchedulerOptions& options) {
    return [=](Accelerator& accelerator, auto& sgd, const auto& step) {
      StepLR constant(sgd, /*step_size=*/1000, /*gamma=*/0.5);
      auto scheduler = accelerator.prepare_scheduler(constant, options);
      for (int i = 0; i < kStepsPerEpoch; ++i) {
        for (int update = 0; update < num_updates; ++update) step();
        scheduler.step();
      }
    };
  };
  EXPECT_THAT(outcome_of(train(1, {})).warnings, IsEmpty());
  EXPECT_THAT(outcome_of(train(2, {})).warnings, IsEmpty());
  EXPECT_THAT(outcome_of(train(1, {}), {.gradient_accumulation_steps = 2}).warnings, IsEmpty());
  EXPECT_THAT(outcome_of(train(4, {}), {.split_batches = true}).warnings, IsEmpty());
}

TEST_P(PreparedSchedulesTest, SamplesAndEpochsExcludeEachOther) {
  outcome_of([](Accelerator& accelerator, auto& sgd, const auto&) {
    StepLR halving(sgd, /*step_size=*/1, /*gamma=*/0.5);
    EXPECT_THAT(message_of<ArgumentError>([&] {
                  accelerator.prepare_scheduler(halving, {.samples_per_step = 4, .step_with_optimizer = false});
                }),
                HasSubstr("samples_per_step requires step_with_optimizer: true"));
  });
}

// --- ranks that share a batch ----------------------------------------------------------------------------------------

struct SharedBatches {
  ParallelismConfig mesh = {};
  int num_batches = 1;  // per step of all ranks
};

const auto kMeshes = {SharedBatches{.mesh = {.tp_size = 4}, .num_batches = 1},
                      SharedBatches{.mesh = {.cp_size = 2}, .num_batches = 1},
                      SharedBatches{.mesh = {.sp_size = 2}, .num_batches = 1},
                      SharedBatches{.mesh = {.dp_replicate_size = 2, .tp_size = 2}, .num_batches = 2},
                      SharedBatches{.mesh = {.dp_replicate_size = 2, .cp_size = 2}, .num_batches = 2},
                      SharedBatches{.mesh = {.dp_replicate_size = 4}, .num_batches = 4},
                      SharedBatches{.mesh = {.dp_replicate_size = 1}, .num_batches = 1}};

void on_meshes(const std::function<void(Accelerator&, RankContext&, const SharedBatches&)>& body) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& shared : kMeshes) {
      run_ranks(backend, static_cast<int>(shared.mesh.total_size()), [&](RankContext& rank) {
        Accelerator accelerator({.parallelism_config = shared.mesh}, rank);
        body(accelerator, rank, shared);
      });
    }
  }
}

TEST(SharedBatchesTest, AScheduleStepsOncePerBatch) {
  on_meshes([](Accelerator& accelerator, RankContext&, const SharedBatches& shared) {
    auto weight = torch::ones({1}).requires_grad_();
    torch::optim::SGD sgd({weight}, /*lr=*/1.0);
    StepLR halving(sgd, /*step_size=*/1, /*gamma=*/0.5);
    auto [optimizer, scheduler] = accelerator.prepare(sgd, halving);
    weight.mutable_grad() = torch::ones({1});
    optimizer.step({.averaged = true});
    scheduler.step();
    EXPECT_EQ(halving.last_epoch(), shared.num_batches);
  });
}

TEST(SharedBatchesTest, PartnersGetTheSameItems) {
  on_meshes([](Accelerator& accelerator, RankContext& rank, const SharedBatches& shared) {
    const std::vector<int> items{0, 1, 2, 3, 4};
    const auto own = accelerator.split_between_processes(items);
    EXPECT_EQ(PartialState(rank).split_between_processes(items), own);
    EXPECT_EQ(AcceleratorState(accelerator).split_between_processes(items), own);
    const auto range = operations::split_items(5, shared.num_batches, accelerator.data_parallel_rank());
    EXPECT_EQ(own, std::vector<int>(items.begin() + range.begin, items.begin() + range.end));
    EXPECT_EQ(accelerator.split_between_processes(items, {.apply_padding = true}).size(),
              (items.size() + shared.num_batches - 1) / shared.num_batches);
  });
}

}  // namespace
}  // namespace accel::testing::prepared_schedules_test
