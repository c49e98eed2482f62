// join_uneven_inputs and split_between_processes: ranks with different numbers of batches or prompts. A rank that
// is finished must answer the collectives of the others, or they hang.
#include <gmock/gmock.h>

#include <numeric>
#include <tuple>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

// One weight; the gradient of a batch is the mean of its numbers. A buffer counts the batches that this rank has seen.
struct CountingModelImpl : torch::nn::Module {
  CountingModelImpl() {
    weight = register_parameter("weight", torch::zeros({1}));
    seen = register_buffer("seen", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& numbers) {
    seen.add_(1);
    return weight * numbers.to(at::kFloat).mean();
  }
  at::Tensor weight, seen;
};
TORCH_MODULE(CountingModel);

// What a rank saw: its weight at the end and its number of steps.
struct Outcome {
  float weight = 0;
  int steps = 0;
  std::int64_t size_after = 0;
};

// A length that the ranks cannot share evenly.
struct Uneven {
  std::int64_t length = 3, batch_size = 1;
  int ranks = 2, accumulation_steps = 1;
};

// Trains within join_uneven_inputs until the data of every rank end.
std::vector<Outcome> train(Backend backend, const Uneven& uneven) {
  return collect_ranks(backend, uneven.ranks, [&](RankContext& rank) {
    Accelerator accelerator(
        {.gradient_accumulation_plugin =
             GradientAccumulationPlugin{.num_steps = uneven.accumulation_steps, .sync_with_dataloader = false}},
        rank);
    CountingModel net, other;
    torch::optim::SGD sgd(net->parameters(), 1.0), other_sgd(other->parameters(), 1.0);
    DataLoader plain(TensorDataset(at::arange(1, uneven.length + 1)), {.batch_size = uneven.batch_size});
    auto [model, optimizer, loader, second, second_optimizer] = accelerator.prepare(net, sgd, plain, other, other_sgd);
    Outcome outcome;
    accelerator.join_uneven_inputs({model, second}, {.even_batches = false}, [&] {
      for (auto& [numbers] : loader) {
        auto window = accelerator.accumulate(model, second);
        accelerator.backward(model(numbers).sum());
        accelerator.backward(second(numbers).sum());
        optimizer.step();
        optimizer.zero_grad();
        ++outcome.steps;
      }
    });
    outcome.weight = net->weight.item<float>();
    outcome.size_after = loader.size();
    return outcome;
  });
}

// Three samples on two ranks: rank 0 has one step more.
TEST(UnevenInputsTest, ARankWithoutBatchesLetsTheOthersContinue) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto outcomes = train(backend, {});
    EXPECT_EQ(outcomes[0].steps, 2);
    EXPECT_EQ(outcomes[1].steps, 1);
    for (const auto& outcome : outcomes) {
      EXPECT_EQ(outcome.weight, -(1 + 2) / 2.0F - 3 / 2.0F)
          << "gradients are divided by the number of ranks, whoever takes part";
      EXPECT_EQ(outcome.size_after, 2) << "even_batches is on again";
    }
  }
}

// Gradients are divided by the number of all ranks, finished ones included, which is torch's default
// (divide_by_initial_world_size=True).
TEST(UnevenInputsTest, EveryRankEndsWithTheWeightOfAllBatches) {
  const auto check = [](Backend backend) {
    Uneven uneven;
    uneven.ranks = pick(1, 5);
    uneven.batch_size = pick<std::int64_t>(1, 4);
    uneven.length = pick<std::int64_t>(0, 20);
    RC_LOG(fmt::format("length {}, batch {}, ranks {}", uneven.length, uneven.batch_size, uneven.ranks));
    float expected = 0;  // small integers, so rounding is negligible
    for (std::int64_t begin = 0; begin < uneven.length; begin += uneven.batch_size) {
      const auto end = std::min(begin + uneven.batch_size, uneven.length);
      expected -= static_cast<float>(begin + 1 + end) / 2 / static_cast<float>(uneven.ranks);
    }
    for (const auto& outcome : train(backend, uneven))
      RC_ASSERT(std::abs(outcome.weight - expected) <= 1e-4F * std::max(1.0F, std::abs(expected)));
  };
  expect_property(60, [&] { check(Backend::kSim); });
  expect_property(15, [&] { check(Backend::kGlooThreads); });
}

// A finished rank must repeat the pattern of the others exactly: collectives only where they have some.
TEST(UnevenInputsTest, LocalMicroBatchesAreShadowedWithoutCommunication) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto outcomes = train(backend, {.length = 7, .ranks = 2, .accumulation_steps = 2});
    EXPECT_EQ(outcomes[0].steps, 4);
    EXPECT_EQ(outcomes[1].steps, 3);
    EXPECT_EQ(outcomes[0].weight, outcomes[1].weight);
  }
}

// Such a forward broadcasts buffers, so a finished rank must join the broadcast.
TEST(UnevenInputsTest, AForwardWithoutGradientsIsShadowedToo) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 2, [](RankContext& rank) {
      Accelerator accelerator({}, rank);
      CountingModel net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer, loader] =
          accelerator.prepare(net, sgd, DataLoader(TensorDataset(at::arange(1, 6)), {.batch_size = 1}));
      accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] {
        for (auto& [numbers] : loader) {
          {
            torch::NoGradGuard no_grad;
            model(numbers);
          }
          accelerator.backward(model(numbers).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
      EXPECT_EQ(net->weight.item<float>(), -(1 + 2 + 3 + 4 + 5) / 2.0F);
    });
  }
}

// even_batches is overridden within the body only. Left changed, the next epoch would be uneven on purpose.
TEST(UnevenInputsTest, LoadersAreRestoredAfterABodyThatThrows) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto loader = accelerator.prepare(DataLoader(TensorDataset(at::arange(3)), {.batch_size = 1}));
    auto model = accelerator.prepare(CountingModel());
    EXPECT_THROW(accelerator.join_uneven_inputs({model}, {.even_batches = false},
                                                [&] {
                                                  EXPECT_EQ(loader.size(), rank.rank == 0 ? 2 : 1);
                                                  throw StateError("enough");
                                                }),
                 StateError);
    EXPECT_EQ(loader.size(), 2);
    std::int64_t steps = 0;
    for ([[maybe_unused]] auto& batch : loader) ++steps;
    EXPECT_EQ(steps, 2);
  });
}

// Loaders fill up the last step by default, so joining must not change anything.
TEST(UnevenInputsTest, WithEvenBatchesThereIsNothingToJoin) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    auto loader = accelerator.prepare(DataLoader(TensorDataset(at::arange(4)), {.batch_size = 1}));
    auto model = accelerator.prepare(CountingModel());
    int steps = 0;
    accelerator.join_uneven_inputs({model}, {}, [&] {
      for (auto& [numbers] : loader) accelerator.backward(model(numbers).sum()), ++steps;
    });
    EXPECT_EQ(steps, 2);
  });
}

// Fills new tensors with the largest number of their type, because uninitialized memory may hold any number.
class FilledMemoryScope {
 public:
  FilledMemoryScope() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  ~FilledMemoryScope() { at::globalContext().setDeterministicAlgorithms(false, false); }
  FilledMemoryScope(const FilledMemoryScope&) = delete;
  FilledMemoryScope& operator=(const FilledMemoryScope&) = delete;
};

// A model with a weight that only some ranks use.
struct BranchingModelImpl : torch::nn::Module {
  BranchingModelImpl() {
    weight = register_parameter("weight", torch::zeros({1}));
    branch = register_parameter("branch", torch::zeros({1}));
  }
  at::Tensor forward(const at::Tensor& numbers, bool takes_branch) {
    return (takes_branch ? weight + branch : weight) * numbers.to(at::kFloat).mean();
  }
  at::Tensor weight, branch;
};
TORCH_MODULE(BranchingModel);

// The maps of used parameters of these ranks would be uninitialised memory. The test fills that memory with the
// largest numbers, two of which add up to -2. The two ranks that have used the branch would then count as none, and
// the one that has not would keep its own gradient.
TEST(UnevenInputsTest, RanksThatNeverHadABatchUseNoParameter) {
  const FilledMemoryScope filled;
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 5, [](RankContext& rank) {
      Accelerator accelerator({.ddp_kwargs = {.find_unused_parameters = true}}, rank);
      BranchingModel net;
      torch::optim::SGD sgd(net->parameters(), 1.0);
      auto [model, optimizer, loader] =
          accelerator.prepare(net, sgd, DataLoader(TensorDataset(at::arange(1, 4)), {.batch_size = 1}));
      accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] {
        for (auto& [numbers] : loader) {
          accelerator.backward(model(numbers, /*takes_branch=*/rank.rank < 2).sum());
          optimizer.step();
        }
      });
      EXPECT_EQ(net->branch.item<float>(), -(1 + 2) / 5.0F);
    });
  }
}

// --- split_between_processes -----------------------------------------------------------------------------------------

// All parts together must be the input in its order.
TEST(SplitBetweenProcessesTest, PartsAreConsecutiveAndDifferByAtMostOneItem) {
  expect_property(200, [] {
    const auto ranks = pick(1, 9);
    const auto items = pick(0, 30);
    std::vector<int> input(items);
    std::iota(input.begin(), input.end(), 0);
    const auto split = [&](bool apply_padding) {
      return collect_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
        return Accelerator({}, rank).split_between_processes(input, {.apply_padding = apply_padding});
      });
    };
    std::vector<int> all;
    std::size_t least = input.size(), most = 0;
    for (const auto& part : split(false)) {
      all.insert(all.end(), part.begin(), part.end());
      least = std::min(least, part.size());
      most = std::max(most, part.size());
    }
    RC_ASSERT(all == input);
    RC_ASSERT(most - least <= 1U);
    const auto padded = split(true), plain = split(false);
    for (int rank = 0; rank < ranks; ++rank) {
      RC_ASSERT(padded[rank].size() == most);
      RC_ASSERT(std::equal(plain[rank].begin(), plain[rank].end(), padded[rank].begin()));
      if (plain[rank].size() < most) RC_ASSERT(padded[rank].back() == input.back());
    }
  });
}

// With padding, the last item is repeated, so that a gather finds equal sizes.
TEST(SplitBetweenProcessesTest, TensorsAndMapsAreSplitByRows) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    using Inputs = std::map<std::string, std::vector<std::string>>;
    const auto part = accelerator.split_between_processes(Inputs{{"a", {"x", "y", "z"}}, {"b", {"1", "2", "3"}}},
                                                          {.apply_padding = true});
    EXPECT_THAT(part.at("b"), rank.rank == 0 ? ElementsAre("1", "2") : ElementsAre("3", "3"));
    EXPECT_TRUE(
        accelerator.split_between_processes(at::arange(5)).equal(rank.rank == 0 ? at::arange(0, 3) : at::arange(3, 5)));
    EXPECT_THROW(std::ignore = accelerator.split_between_processes(Inputs{{"a", {"x", "y"}}, {"b", {"1"}}}),
                 ArgumentError);
  });
}

// Exhaustive over small sizes, because rounding up has its mistakes at 0 and at exact multiples.
TEST(PadInputTensorsTest, ThePaddedSizeIsTheLeastMultipleThatHoldsAllRows) {
  for (std::int64_t rows = 0; rows < 20; ++rows) {
    for (int ranks = 1; ranks < 7; ++ranks) {
      const auto padded =
          operations::pad_input_tensors(at::ones({rows, 2}), {.batch_size = rows, .num_processes = ranks});
      EXPECT_EQ(padded.size(0), (rows + ranks - 1) / ranks * ranks);
      EXPECT_EQ(padded.sum().item<double>(), 2.0 * static_cast<double>(rows));
    }
  }
}

// Overriding would not change how a stream or a dispatched loader is divided.
TEST(JoinWarningTest, AnOverrideWithoutEffectIsReported) {
  const auto warnings_of = [](const AcceleratorOptions& options, bool even_batches) {
    std::vector<std::string> warnings;
    run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      if (rank.rank == 0) rank.warn = [&](const std::string& text) { warnings.push_back(text); };
      Accelerator accelerator(options, rank);
      torch::nn::Linear net(1, 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer, loader] =
          accelerator.prepare(net, sgd, DataLoader(TensorDataset(at::arange(4)), {.batch_size = 1}));
      accelerator.join_uneven_inputs({model}, {.even_batches = even_batches}, [] {});
    });
    return warnings;
  };
  EXPECT_THAT(warnings_of({}, false), ::testing::IsEmpty());
  EXPECT_THAT(warnings_of({.dataloader_config = {.dispatch_batches = true}}, false),
              ElementsAre("join_uneven_inputs: even_batches has no effect on loaders of iterable datasets and on those "
                          "that dispatch batches"));
  EXPECT_THAT(warnings_of({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, true),
              ElementsAre("join_uneven_inputs: has no effect on sharded models"));
}

// A rank that threw alone would leave the others waiting.
TEST(UnevenInputsTest, ShardedModelsNeedEvenBatches) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const auto& options : {AcceleratorOptions{.fsdp_plugin = FullyShardedDataParallelPlugin{}},
                                AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}}) {
      run_ranks(backend, 2, [&](RankContext& rank) {
        Accelerator accelerator(options, rank);
        torch::nn::Linear net(1, 1);
        auto model = accelerator.prepare(net);
        EXPECT_THAT(
            message_of<StateError>([&] { accelerator.join_uneven_inputs({model}, {.even_batches = false}, [] {}); }),
            ::testing::HasSubstr("join_uneven_inputs: does not support sharded models"));
      });
    }
  }
}

// --- a mesh ----------------------------------------------------------------------------------------------------------

// Six ranks as 3 x 2: the two tensor-parallel ranks of a group must see the same samples, or their partial results
// do not belong together.
TEST(MeshTest, RanksOfOneDataParallelGroupReadTheSameBatch) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const bool dispatch : {false, true}) {
      const auto read = collect_ranks(backend, 6, [&](RankContext& rank) {
        Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch},
                                 .parallelism_config = ParallelismConfig{.dp_replicate_size = 3, .tp_size = 2}},
                                rank);
        auto loader =
            accelerator.prepare(DataLoader(TensorDataset(at::arange(10)), {.batch_size = 2, .shuffle = true}));
        EXPECT_EQ(loader.total_batch_size(), 6);
        EXPECT_EQ(accelerator.data_parallel_rank(), rank.rank / 2);
        std::vector<std::int64_t> own, gathered;
        for (auto& [ids] : loader) {
          for (std::int64_t row = 0; row < ids.size(0); ++row) own.push_back(ids[row].item<std::int64_t>());
          const auto all = accelerator.gather_for_metrics(ids);
          for (std::int64_t row = 0; row < all.size(0); ++row) gathered.push_back(all[row].item<std::int64_t>());
        }
        std::sort(gathered.begin(), gathered.end());
        std::vector<std::int64_t> expected(10);
        std::iota(expected.begin(), expected.end(), 0);
        EXPECT_EQ(gathered, expected);
        return own;
      });
      for (int rank = 0; rank < 6; rank += 2) EXPECT_EQ(read[rank], read[rank + 1]);
      EXPECT_NE(read[0], read[2]);
    }
  }
}

TEST(MeshTest, AModelThatIsNotShardedIsRefusedOnAMeshThatShardsIt) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 4, [](RankContext& rank) {
      const auto problem = [&](const ParallelismConfig& mesh, std::optional<FullyShardedDataParallelPlugin> plugin) {
        return message_of<ConfigError>([&] {
          Accelerator accelerator({.parallelism_config = mesh, .fsdp_plugin = std::move(plugin)}, rank);
          torch::nn::Linear net(2, 2);
          accelerator.prepare(net);
        });
      };
      EXPECT_THAT(problem({.dp_shard_size = 2, .cp_size = 2}, std::nullopt),
                  ::testing::HasSubstr("dp_shard_size 2, and the model is not sharded"));
      EXPECT_THAT(problem({.dp_shard_size = 4}, FullyShardedDataParallelPlugin{.sharding_strategy = "NO_SHARD"}),
                  ::testing::HasSubstr("dp_shard_size 4"));
      EXPECT_EQ(problem({.dp_replicate_size = 4}, std::nullopt), "");
      EXPECT_THAT(problem({.dp_replicate_size = 2, .tp_size = 2}, std::nullopt), ::testing::HasSubstr("tp_size 2"));
      EXPECT_EQ(problem({.dp_shard_size = 2, .tp_size = 2}, FullyShardedDataParallelPlugin{}), "");
    });
  }
}

TEST(MeshTest, AMeshWithoutSizesIsDataParallelOverAllRanks) {
  run_ranks(Backend::kSim, 3, [](RankContext& rank) {
    const Accelerator accelerator({.parallelism_config = ParallelismConfig{}}, rank);
    EXPECT_EQ(accelerator.data_parallel_size(), 3);
    EXPECT_EQ(accelerator.data_parallel_rank(), rank.rank);
  });
}

// The sizes come from different places, so the message lists them all.
TEST(MeshTest, AMeshOfAnotherSizeIsAConfigErrorThatNamesAllSizes) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    try {
      Accelerator accelerator({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2, .tp_size = 2}}, rank);
      ADD_FAILURE() << "accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("2 x 1 x 1 x 1 x 2 = 4 ranks"));
    }
  });
}

}  // namespace
}  // namespace accel::testing
