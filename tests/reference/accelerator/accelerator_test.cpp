// The front end, Accelerator, on simulated ranks and on real Gloo alike: properties of the process, collectives
// over trees, accumulation, metrics, schedules, mixed precision and clipping. Each test is the smallest program
// that would show the documented behaviour of Python's Accelerate.
#include <gtest/gtest.h>
#include <torch/nn/utils.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>

#include "properties/gen/collective_call.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct TinyImpl : nn::Module {
  TinyImpl() : linear(register_module("linear", nn::Linear(4, 3))), norm(register_module("norm", nn::BatchNorm1d(3))) {}
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  nn::Linear linear;
  nn::BatchNorm1d norm;
};
TORCH_MODULE(Tiny);

class AcceleratorTest : public ::testing::TestWithParam<Backend> {
 protected:
  static constexpr int kRanks = 3;
  void on_ranks(const std::function<void(Accelerator&, RankContext&)>& body, AcceleratorOptions options = {}) {
    run_ranks(GetParam(), kRanks, [&](RankContext& rank) {
      Accelerator accelerator(options, rank);
      body(accelerator, rank);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, AcceleratorTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(AcceleratorTest, ProcessPropertiesAreTheRanks) {
  std::atomic<int> main_ranks{0}, last_ranks{0}, on_two{0};
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    EXPECT_EQ(accelerator.num_processes(), kRanks);
    EXPECT_EQ(accelerator.process_index(), rank.rank);
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kMultiCpu);
    EXPECT_TRUE(accelerator.use_distributed());
    accelerator.on_main_process([&] { ++main_ranks; });
    accelerator.on_last_process([&] { ++last_ranks; });
    accelerator.on_process(2, [&] { on_two += rank.rank; });
  });
  EXPECT_EQ(main_ranks, 1);
  EXPECT_EQ(last_ranks, 1);
  EXPECT_EQ(on_two, 2);
}

TEST_P(AcceleratorTest, CollectivesMapOverTrees) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    const auto mine = at::full({1, 2}, rank.rank + 1.0);
    const auto [gathered, scalar] = accelerator.gather(std::pair(mine, at::scalar_tensor(5.0 + rank.rank)));
    EXPECT_TRUE(gathered.equal(torch::tensor({{1.0, 1.0}, {2.0, 2.0}, {3.0, 3.0}}, at::kFloat)));
    EXPECT_TRUE(scalar.equal(torch::tensor({5.0, 6.0, 7.0}, at::kFloat)));
    const auto sums = accelerator.reduce(std::vector<at::Tensor>{mine, 2 * mine});
    EXPECT_TRUE(sums[1].equal(at::full({1, 2}, 12.0)));
    EXPECT_TRUE(accelerator.reduce(mine, "mean").equal(at::full({1, 2}, 2.0)));
    EXPECT_TRUE(accelerator.reduce(mine, "max").equal(at::full({1, 2}, 3.0)));
    EXPECT_TRUE(mine.equal(at::full({1, 2}, rank.rank + 1.0))) << "reduce must not change its input";
    EXPECT_THROW(accelerator.reduce(mine, "median"), ArgumentError);
    EXPECT_THROW(accelerator.reduce(at::ones({2}, at::kLong), "mean"), ArgumentError);
    std::map<std::string, at::Tensor> tree{{"a", at::full({2}, static_cast<double>(rank.rank))}};
    accelerator.broadcast(tree, /*from_process=*/2);
    EXPECT_TRUE(tree["a"].equal(at::full({2}, 2.0)));
  });
}

TEST_P(AcceleratorTest, PaddingReachesTheLongestRank) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    const auto mine = at::ones({rank.rank + 1, 2});
    const auto padded = accelerator.pad_across_processes(mine, {.pad_index = 9});
    ASSERT_EQ(padded.size(0), kRanks);
    EXPECT_EQ(padded.eq(9).sum().item<std::int64_t>(), 2 * (kRanks - rank.rank - 1));
    const auto first = accelerator.pad_across_processes(mine, {.pad_first = true});
    EXPECT_EQ(first[kRanks - 1].sum().item<double>(), 2.0);
    EXPECT_TRUE(accelerator.pad_across_processes(mine, {.dim = 5}).is_same(mine));
    EXPECT_EQ(accelerator.gather(padded).size(0), kRanks * kRanks);
  });
}

TEST_P(AcceleratorTest, DdpAveragesGradientsOfRanks) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    set_seed(100, {.device_specific = true});  // ranks start with different values; prepare broadcasts rank 0's
    Tiny net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto weights = accelerator.gather(net->linear->weight.detach().unsqueeze(0));
    EXPECT_TRUE(weights[0].equal(weights[kRanks - 1]));
    for (int step = 0; step < 3; ++step) {
      auto loss = model(at::randn({5, 4})).square().mean();
      accelerator.backward(loss);
      const auto grads = accelerator.gather(net->linear->weight.grad().unsqueeze(0));
      EXPECT_TRUE(grads[0].equal(grads[rank.rank])) << "step " << step;
      optimizer.step();
      optimizer.zero_grad();
    }
    const auto after = accelerator.gather(net->linear->weight.detach().unsqueeze(0));
    EXPECT_TRUE(after[0].equal(after[kRanks - 1]));
    EXPECT_FALSE(after[0].equal(weights[0]));
  });
}

// The end of the loader closes a window early. Otherwise its last gradients would leak into the next epoch.
TEST_P(AcceleratorTest, AccumulationSynchronizesAtTheWindowAndAtTheLoadersEnd) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext& rank) {
        set_seed(1);
        nn::Linear net(1, 1);
        torch::optim::SGD sgd(net->parameters(), 0.0);
        DataLoader loader(TensorDataset(at::arange(5 * kRanks).to(at::kFloat).unsqueeze(1)), {.batch_size = 1});
        auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
        for (int epoch = 0; epoch < 2; ++epoch) {
          std::vector<bool> sync;
          for (auto& [x] : batches) {
            auto window = accelerator.accumulate(model);
            sync.push_back(accelerator.sync_gradients());
            accelerator.backward(model(x).sum());
            const auto grads = accelerator.gather(net->weight.grad());
            EXPECT_EQ(grads[0].equal(grads[1]), accelerator.sync_gradients())
                << "gradients meet only where they synchronise";
            optimizer.step();
            optimizer.zero_grad();
            EXPECT_EQ(net->weight.grad().defined(), !accelerator.sync_gradients());
          }
          EXPECT_THAT(sync, ElementsAre(false, true, false, true, true));
        }
      },
      {.gradient_accumulation_steps = 2});
}

// Six training steps and four evaluation steps. A loader that stays active after `break` would change the windows.
TEST_P(AcceleratorTest, EvaluationLeftByBreakDoesNotChangeTheCadence) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        nn::Linear net(1, 1);
        DataLoader train(TensorDataset(at::zeros({6 * kRanks, 1})), {.batch_size = 1});
        DataLoader eval(TensorDataset(at::zeros({4 * kRanks, 1})), {.batch_size = 1});
        auto [model, train_batches, eval_batches] = accelerator.prepare(net, train, eval);
        std::vector<bool> sync;
        for (auto& [x] : train_batches) {
          auto window = accelerator.accumulate(model);
          sync.push_back(accelerator.sync_gradients());
          accelerator.backward(model(x).sum());
          if (sync.size() == 3) {
            for ([[maybe_unused]] auto& unused : eval_batches) break;
          }
        }
        EXPECT_THAT(sync, ElementsAre(false, false, false, true, false, true));
        EXPECT_FALSE(accelerator.gradient_state().in_dataloader());
      },
      {.gradient_accumulation_steps = 4});
}

// Ten samples on three ranks in batches of two: the last step has duplicates, which metrics must not contain.
TEST_P(AcceleratorTest, MetricsHoldEverySampleOnceAndRefuseWhatCannotBeCut) {
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    DataLoader loader(TensorDataset(at::arange(10)), {.batch_size = 2});
    auto batches = accelerator.prepare(loader);
    std::vector<at::Tensor> all;
    for (auto& [ids] : batches) {
      all.push_back(accelerator.gather_for_metrics(ids));
      if (accelerator.gradient_state().end_of_dataloader()) {
        EXPECT_THROW(accelerator.gather_for_metrics(ids.sum()), ArgumentError);
      }
    }
    EXPECT_TRUE(at::cat(all).equal(at::arange(10)));
  });
}

// Twelve samples fill the last step exactly, so nothing may be truncated. A remainder of 0 means "complete" and not
// "empty".
TEST_P(AcceleratorTest, AFullLastStepOfADispatchedLoaderHoldsNoDuplicates) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        auto batches = accelerator.prepare(DataLoader(TensorDataset(at::arange(12)), {.batch_size = 2}));
        double sum = 0;
        for (auto& [ids] : batches) sum += accelerator.gather_for_metrics(ids.sum()).sum().item<double>();
        EXPECT_EQ(sum, 66);
      },
      {.dataloader_config = {.dispatch_batches = true}});
}

TEST_P(AcceleratorTest, MetricsOfAnUnevenLastStepLoseOnlyTheirPadding) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext& rank) {
        auto batches = accelerator.prepare(
            DataLoader(TensorDataset(at::arange(1, 12)), {.batch_size = 2}));  // of the last step 2, 2 and 1
        std::vector<at::Tensor> all;
        double sum = 0;
        for (auto& [ids] : batches) {
          all.push_back(accelerator.gather_for_metrics(accelerator.pad_across_processes(ids, {.pad_index = -1})));
          sum += accelerator.gather_for_metrics(ids.sum()).sum().item<double>();
          const bool is_last = accelerator.gradient_state().end_of_dataloader();
          EXPECT_EQ(accelerator.gather_for_metrics(std::vector<std::string>(ids.size(0) + 1, "name")).size(),
                    is_last ? 8 : 9)
              << "of what was not padded nothing is left out";
          if (!is_last) continue;
          EXPECT_EQ(ids.size(0), rank.rank == 2 ? 1 : 2);
          EXPECT_THROW(accelerator.gather_for_metrics(at::zeros({5})), ArgumentError) << "on every rank";
        }
        EXPECT_EQ(sum, 66);
        EXPECT_TRUE(at::cat(all).equal(at::arange(1, 12)));
      },
      {.dataloader_config = {.even_batches = false}});
}

TEST_P(AcceleratorTest, SplitBatchesOfTheConstructorIsHonoured) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        auto batches = accelerator.prepare(DataLoader(TensorDataset(at::arange(12)), {.batch_size = 6}));
        EXPECT_EQ(batches.total_batch_size(), 6);
        for (auto& [ids] : batches) EXPECT_EQ(ids.size(0), 2);
      },
      {.split_batches = true});
}

// accelerate/scheduler.py steps the schedule once per process, because each step consumes a batch of every process.
TEST_P(AcceleratorTest, ScheduleStepsOncePerRankAndOnlyWithTheOptimizer) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        nn::Linear net(1, 1);
        torch::optim::SGD sgd(net->parameters(), 1.0);
        LambdaLR lambda(sgd, [](int k) { return 1.0 - k / 10.0; });
        auto [scheduler, optimizer, model] = accelerator.prepare(lambda, sgd, net);
        std::vector<double> rates;
        for (int step = 0; step < 4; ++step) {
          auto window = accelerator.accumulate(model);
          accelerator.backward(model(at::ones({1, 1})).sum());
          optimizer.step();
          scheduler.step();
          rates.push_back(optimizer.lr());
        }
        EXPECT_THAT(rates, ElementsAre(1.0, 1.0 - 3 / 10.0, 1.0 - 3 / 10.0, 1.0 - 6 / 10.0));
      },
      {.gradient_accumulation_steps = 2});
}

// A main process that downloads data must be done before the others look for it.
TEST_P(AcceleratorTest, MainProcessRunsFirst) {
  std::atomic<bool> main_done{false};
  std::atomic<int> too_early{0};
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    const auto scope = accelerator.main_process_first();
    if (accelerator.is_main_process()) {
      main_done = true;
    } else if (!main_done) {
      ++too_early;
    }
  });
  EXPECT_EQ(too_early, 0);
}

TEST_P(AcceleratorTest, Bf16RunsInAutocastAndReturnsFloat32) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        set_seed(3);
        nn::Linear net(4, 2);
        auto model = accelerator.prepare(net);
        const auto out = model(at::randn({3, 4}));
        EXPECT_EQ(out.scalar_type(), at::kFloat);
        EXPECT_TRUE(out.equal(out.to(at::kBFloat16).to(at::kFloat))) << "computed in bfloat16";
        accelerator.backward(out.sum());
        EXPECT_EQ(net->weight.grad().scalar_type(), at::kFloat);
        const auto scope = accelerator.autocast();
        EXPECT_EQ(at::matmul(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kBFloat16);
      },
      {.mixed_precision = "bf16"});
}

TEST_P(AcceleratorTest, ClippingGivesTheNormBeforeAndBoundsItAfter) {
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    nn::Linear net(3, 3);
    auto model = accelerator.prepare(net);
    accelerator.backward(100 * model(at::ones({2, 3})).sum());
    const auto before = accelerator.clip_grad_norm_(model.parameters(), 1.0).item<double>();
    EXPECT_GT(before, 100.0);
    EXPECT_NEAR(accelerator.clip_grad_norm_(model.parameters(), 1.0).item<double>(), 1.0,
                1e-4);  // torch adds 1e-6 to the norm
    accelerator.clip_grad_value_(model.parameters(), 0.01);
    EXPECT_LE(net->weight.grad().abs().max().item<float>(), 0.01f);
  });
}

TEST_P(AcceleratorTest, PreparedObjectsPassThrough) {
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    nn::Linear net(2, 2);
    DataLoader loader(TensorDataset(at::arange(12)), {.batch_size = 2});
    auto [model, batches] = accelerator.prepare(net, loader);
    auto again = accelerator.prepare(batches);
    EXPECT_EQ(again.size(), batches.size());
    EXPECT_EQ(batches.total_batch_size(), 2 * kRanks);
    EXPECT_EQ(accelerator.unwrap_model(model).get(), net.ptr().get());
  });
}

// Rank 1 is not a member: it must neither take part nor wait.
TEST_P(AcceleratorTest, SubGroupsReduceAmongTheirMembers) {
  on_ranks([&](Accelerator&, RankContext& rank) {
    auto pair = rank.new_group({0, 2});
    if (rank.rank == 1) return;
    auto value = at::full({2}, rank.rank + 1.0);
    pair.all_reduce(value).wait();
    EXPECT_TRUE(value.equal(at::full({2}, 4.0)));
  });
}

// The strictest check: one training step has the same bits on threads of the simulator and on Gloo.
TEST_P(AcceleratorTest, OneStepGivesTheSameBitsOnBothBackends) {
  const auto parameters_after = [](Backend backend) {
    return collect_ranks(backend, kRanks, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      set_seed(11);
      Tiny net;
      accel::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-2));
      auto [model, optimizer] = accelerator.prepare(net, adam);
      set_seed(12, {.device_specific = true});
      for (int step = 0; step < 5; ++step) {
        accelerator.backward(model(at::randn({4, 4})).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      return nn::utils::parameters_to_vector(net->parameters()).detach();
    });
  };
  EXPECT_TRUE(same_bytes(parameters_after(Backend::kSim)[0], parameters_after(Backend::kGlooThreads)[2]));
}

TEST(AcceleratorOptionsTest, AllProblemsAreInOneMessage) {
  const auto rank = make_single_rank();
  try {
    AcceleratorOptions options{.mixed_precision = "fp32", .gradient_accumulation_steps = 0, .device_placement = false};
    options.dataloader_config = {.dispatch_batches = true, .even_batches = false, .order = "elastic"};
    options.rng_types = {"xla"};
    const Accelerator accelerator(options, *rank);
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    for (const auto* word :
         {"mixed_precision", "gradient_accumulation_steps", "dispatch_batches", "order: elastic", "'xla'"})
      EXPECT_THAT(error.what(), HasSubstr(word));
  }
}

// accelerate/accelerator.py gives this variable precedence over the argument, unlike ACCELERATE_MIXED_PRECISION.
TEST(AcceleratorOptionsTest, EnvironmentBeatsTheAccumulationArgument) {
  const auto rank = make_single_rank();
  setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "3", 1);
  setenv("ACCELERATE_MIXED_PRECISION", "bf16", 1);
  const Accelerator from_environment({.gradient_accumulation_steps = 2}, *rank);
  const Accelerator from_argument({.mixed_precision = "no"}, *rank);
  unsetenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS");
  unsetenv("ACCELERATE_MIXED_PRECISION");
  EXPECT_EQ(from_environment.gradient_accumulation_steps(), 3);
  EXPECT_EQ(from_environment.mixed_precision(), "bf16");
  EXPECT_EQ(from_argument.mixed_precision(), "no");
}

// Rank 3 transposes its tensor. Gloo would sum the elements in the wrong order without an error.
TEST(SimulatorDiagnosisTest, ShapesThatDifferAreNamedRankByRank) {
  try {
    run_ranks(Backend::kSim, 4, [](RankContext& rank) {
      auto tensor = at::ones(rank.rank == 3 ? std::vector<std::int64_t>{10, 64} : std::vector<std::int64_t>{64, 10});
      rank.world.all_reduce(tensor).wait();
    });
    FAIL() << "expected a desync";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("ranks 0-2: all_reduce(sum, float32 [64, 10])"));
    EXPECT_THAT(error.what(), HasSubstr("rank 3: all_reduce(sum, float32 [10, 64])"));
  }
}

TEST(SimulatorDiagnosisTest, RankThatSkipsABackwardPassIsNamed) {
  // The other ranks block inside the backward pass, in the future of DDP's reducer. The engine must notice them
  // there.
  try {
    run_ranks(Backend::kSim, 3, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      nn::Linear net(2, 2);
      auto model = accelerator.prepare(net);
      const auto loss = model(at::ones({1, 2})).sum();
      if (rank.rank != 1) accelerator.backward(loss);
    });
    FAIL() << "expected a hang";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("hang"));
    EXPECT_THAT(error.what(), HasSubstr("missing: rank 1 has ended its program"));
  }
}

}  // namespace
}  // namespace accel::testing
