// Forecasts of layouts agree with simulated ranks that train under them.
#include "sim/programs/experiments/layout_forecast.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "reference/core/errors.hpp"
#include "sim/programs/experiments/train_experiment.hpp"
#include "sim/programs/layouts/layout_proof.hpp"
#include "sim/programs/rehearsal/thread_ranks.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::layout_forecast {
namespace {

using programs::LayoutForecast;
using ::testing::HasSubstr;

class LayoutForecastTest : public ::testing::Test {
 protected:
  static std::string source(const std::string& path) {
    return std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/" + path;
  }
  static std::string network() { return source("configs/sim/networks/infiniband_400g.yaml"); }
  static std::string experiment() { return source("configs/train/char_gpt.yaml"); }

  // The same numbers, of all ranks.
  static LayoutForecast simulated(const programs::LayoutForecaster& forecast, const ParallelismConfig& layout,
                                  int num_ranks) {
    auto experiment =
        programs::read_experiment(LayoutForecastTest::experiment(), forecast.overrides_of(layout), num_ranks);
    experiment.max_steps = 6;
    experiment.eval_limit = num_ranks;
    experiment.sample.reset();
    const auto task = programs::load_task(experiment);
    std::vector<programs::RankResult> results(num_ranks);
    const programs::Rehearsal rehearsal({.network = network()}, num_ranks);
    const auto report = programs::run_threads(rehearsal, std::chrono::minutes(5), [&](RankContext& rank) {
      programs::train_experiment(rank, experiment, task, {}, results[rank.rank]);
    });
    if (report.error) std::rethrow_exception(report.error);
    LayoutForecast measured{.layout = layout, .costs = {.step_seconds = programs::predict(report.times).step_seconds}};
    for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind) {
      std::int64_t most = 0;
      for (const auto& result : results)
        most = std::max(most, result.memory.most(static_cast<sharded::MemoryKind>(kind)));
      measured.memory.emplace_back(sharded::kMemoryKindNames[kind], most);
    }
    return measured;
  }

  // Step times agree within 4 % (dp_replicate 4 x dp_shard 4 x tp 4 is 3.8 % off, the others within 3): DDP and FSDP
  // overlap calls of several groups, which the network prices in the order in which it is asked. Memory agrees in every
  // byte.
  static int check_all(int num_ranks, const std::vector<ParallelismConfig>& layouts) {
    // An epoch of more than six steps of all ranks: an evaluation between them would count.
    programs::LayoutForecaster forecast(experiment(), {"limit=448", "batch_size=1"}, num_ranks, network());
    int fitting = 0;
    for (const auto& layout : layouts) {
      const auto predicted = forecast(layout);
      if (!predicted.problem.empty()) continue;
      ++fitting;
      const auto measured = simulated(forecast, layout, num_ranks);
      EXPECT_NEAR(predicted.costs.step_seconds / measured.costs.step_seconds, 1, 0.04) << programs::name_of(layout);
      EXPECT_EQ(predicted.memory, measured.memory) << programs::name_of(layout);
    }
    return fitting;
  }
};

TEST_F(LayoutForecastTest, TimeAndMemoryAreThoseOfSimulatedRanksUnderEveryLayoutOfFour) {
  EXPECT_EQ(check_all(4, programs::all_layouts(4, {.shards = true})), 14);
}

TEST_F(LayoutForecastTest, TimeAndMemoryAreThoseOfSimulatedRanksUnderLayoutsOfEight) {
  EXPECT_EQ(check_all(8, {{.dp_replicate_size = 2, .dp_shard_size = 2, .tp_size = 2},
                          {.dp_shard_size = 2, .cp_size = 2, .tp_size = 2},
                          {.dp_replicate_size = 2, .sp_size = 2, .tp_size = 2},
                          {.dp_shard_size = 8}}),
            4);
}

TEST_F(LayoutForecastTest, TimeAndMemoryAreThoseOf64SimulatedRanks) {
  EXPECT_EQ(check_all(64, {{.dp_replicate_size = 4, .dp_shard_size = 4, .tp_size = 4}}), 1);
}

TEST_F(LayoutForecastTest, TheNetworkPricesGroupsByWhereTheirRanksAre) {
  programs::LayoutForecaster near(experiment(), {"limit=64"}, 16, network()),
      far(experiment(), {"limit=64"}, 16, source("configs/sim/networks/ethernet_100g.yaml"));
  const ParallelismConfig layout{.dp_replicate_size = 4, .tp_size = 4};
  const auto inside = near(layout), outside = far(layout);
  const auto exposed = [](const LayoutForecast& forecast) {
    return forecast.costs.step_seconds - forecast.costs.compute_seconds;
  };
  EXPECT_LT(exposed(inside), exposed(outside) / 2);
}

TEST_F(LayoutForecastTest, ALayoutThatDoesNotFitHasTheReasonOfTheProgram) {
  programs::LayoutForecaster forecast(experiment(), {}, 16, network());
  EXPECT_THAT(forecast({.tp_size = 16}).problem, HasSubstr("heads: 4 does not divide over 16 tensor-parallel ranks"));
  EXPECT_THAT(forecast({.dp_replicate_size = 8, .ep_size = 2}).problem,
              HasSubstr("ep_size 2, and no layer of the model is divided"));
  programs::LayoutForecaster images(source("configs/train/fashion_mnist.yaml"), {"limit=64", "eval_limit=16"}, 4,
                                    network());
  EXPECT_THAT(images({.tp_size = 4}).problem, HasSubstr("tp_size 4, and no layer of the model is divided"));
  EXPECT_THAT(images({.cp_size = 4}).problem, HasSubstr("the model computes no sequences"));
  EXPECT_EQ(images({.dp_replicate_size = 2, .dp_shard_size = 2}).problem, "");
}

}  // namespace
}  // namespace accel::testing::layout_forecast
