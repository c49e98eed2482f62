// What a port of a LibTorch loop does wrong at first: it works, or it is refused with a sentence that says what to
// write. Nothing trains another model than the program's author meant. See also tests/programs/mistakes_test.cpp, of
// what does not compile.
#include <gtest/gtest.h>
#include <torch/data/datasets/tensor.h>
#include <torch/serialize.h>

#include <accel/accel.hpp>

#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::natural_mistakes_test {

struct Outputs {
  at::Tensor reconstruction, mean;
};
struct KnownOutputs {
  at::Tensor reconstruction, mean;
};

}  // namespace accel::testing::natural_mistakes_test

template <>
inline constexpr auto accel::tree_members<accel::testing::natural_mistakes_test::KnownOutputs> =
    std::tuple(&accel::testing::natural_mistakes_test::KnownOutputs::reconstruction,
               &accel::testing::natural_mistakes_test::KnownOutputs::mean);

namespace accel::testing::natural_mistakes_test {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// As pytorch/examples writes a network: no TORCH_MODULE, an object on the stack.
struct PlainNet : nn::Module {
  PlainNet()
      : first(register_module("first", nn::Linear(4, 8))),
        norm(register_module("norm", nn::BatchNorm1d(8))),
        last(register_module("last", nn::Linear(8, 2))) {}
  at::Tensor forward(const at::Tensor& x) { return last(torch::relu(norm(first(x)))); }
  nn::Linear first;
  nn::BatchNorm1d norm;
  nn::Linear last;
};

template <typename Out>
struct EncoderImpl : nn::Module {
  EncoderImpl()
      : encode(register_module("encode", nn::Linear(4, 4))), decode(register_module("decode", nn::Linear(4, 4))) {}
  Out forward(const at::Tensor& x) {
    const auto mean = encode(x);
    return {decode(mean), mean};
  }
  nn::Linear encode, decode;
};

class MistakesTest : public ::testing::TestWithParam<Backend> {
 protected:
  static constexpr int kRanks = 3;
  static void on_ranks(const std::function<void(Accelerator&, RankContext&)>& body, AcceleratorOptions options = {}) {
    run_ranks(GetParam(), kRanks, [&](RankContext& rank) {
      Accelerator accelerator(options, rank);
      set_seed(3);
      body(accelerator, rank);
    });
  }
  static at::Tensor batch_of(const RankContext& rank) {
    return at::full({5, 4}, rank.rank + 1.0) + at::arange(20).view({5, 4}) / 10;
  }
  static void expect_equal_on_all_ranks(const Accelerator& accelerator, const std::vector<at::Tensor>& parameters) {
    for (const auto& parameter : parameters) {
      const auto all = accelerator.gather(parameter.detach().unsqueeze(0));
      for (int rank = 1; rank < kRanks; ++rank) EXPECT_TRUE(all[rank].equal(all[0]));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, MistakesTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(MistakesTest, ForwardThatBypassesThePreparedModelIsRefusedAtTheStep) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto before = net->weight.detach().clone();
    const std::function<at::Tensor()> forwards[] = {[&] { return model->forward(batch_of(rank)); },
                                                    [&] { return net->forward(batch_of(rank)); },
                                                    [&] { return net(batch_of(rank)); }};
    for (const auto& forward : forwards) {
      accelerator.backward(forward().square().mean());
      EXPECT_THAT(message_of<StateError>([&] { optimizer.step(); }),
                  AllOf(HasSubstr("'weight' and 1 more parameters were not averaged over the 3 ranks"),
                        HasSubstr("Call model(x), not model->forward(x)")));
      EXPECT_TRUE(net->weight.equal(before));
      optimizer.zero_grad();
    }
    accelerator.backward(model(batch_of(rank)).square().mean());
    optimizer.step();
    EXPECT_FALSE(net->weight.equal(before));
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, TwoBackwardPassesOfOneForwardAreRefusedAndOneOfTheirSumIsNot) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto real = model(batch_of(rank)).mean(), fake = model(-batch_of(rank)).square().mean();
    accelerator.backward(real);
    accelerator.backward(fake);
    EXPECT_THAT(message_of<StateError>([&] { optimizer.step(); }),
                HasSubstr("give two losses of one forward to one backward"));
    optimizer.zero_grad(/*set_to_none=*/false);
    const auto again = model(batch_of(rank)).mean(), other = model(-batch_of(rank)).square().mean();
    accelerator.backward(again + other);
    optimizer.step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, WhatANoSyncScopeKeptLocalIsTheProgramsWish) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    local_sgd(accelerator, model, {.local_sgd_steps = 2}, [&](LocalSGD& local) {
      for (int step = 0; step < 4; ++step) {
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        local.step();
      }
    });
    expect_equal_on_all_ranks(accelerator, net->parameters());
    accelerator.backward(model(batch_of(rank)).square().mean());
    optimizer.step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, AMicroBatchThatBypassesThePreparedModelIsAveragedWithTheWindow) {
  const auto train = [&](bool bypasses) {
    std::vector<at::Tensor> weights(kRanks);
    on_ranks(
        [&](Accelerator& accelerator, RankContext& rank) {
          nn::Linear net(4, 1);
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          for (int step = 0; step < 4; ++step) {
            auto window = accelerator.accumulate(model);
            const auto x = batch_of(rank) * (step + 1);
            accelerator.backward(
                (bypasses && !accelerator.sync_gradients() ? model->forward(x) : model(x)).square().mean());
            optimizer.step();
            optimizer.zero_grad();
          }
          weights[rank.rank] = net->weight.detach().clone();
        },
        {.gradient_accumulation_steps = 2});
    return weights;
  };
  const auto bypassed = train(true), plain = train(false);
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(bypassed[rank].equal(plain[0]));
}

TEST_P(MistakesTest, AParameterOfTwoPreparedModelsIsAveragedByEither) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear encoder(4, 4);
    nn::Sequential whole(encoder, nn::Linear(4, 1));
    torch::optim::SGD sgd(whole->parameters(), 0.1);
    auto [part, model, optimizer] = accelerator.prepare(encoder, whole, sgd);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(batch_of(rank)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_equal_on_all_ranks(accelerator, whole->parameters());
  });
}

TEST_P(MistakesTest, NoSyncOnOneOfTwoModelsWithASharedParameterIsTheProgramsWish) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [first, model, optimizer] = accelerator.prepare(net, net, sgd);
    local_sgd(accelerator, model, {.local_sgd_steps = 2}, [&](LocalSGD& local) {
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        local.step();
      }
    });
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

// What the program averages itself is no mistake, if it says so.
TEST_P(MistakesTest, AProgramThatAveragesGradientsItselfSaysNoSync) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      const auto local = accelerator.no_sync(model);
      accelerator.backward(model->forward(batch_of(rank)).square().mean());
    }
    for (auto& parameter : net->parameters()) parameter.mutable_grad() = accelerator.reduce(parameter.grad(), "mean");
    optimizer.step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, AClosureThatBypassesThePreparedModelIsRefused) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto closure = [&](bool bypasses) {
      return [&, bypasses] {
        optimizer.zero_grad();
        const auto loss = (bypasses ? model->forward(batch_of(rank)) : model(batch_of(rank))).square().mean();
        accelerator.backward(loss);
        return loss;
      };
    };
    EXPECT_THROW(optimizer.step(closure(true)), StateError);
    optimizer.step(closure(false));
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

// One head of two on each rank: the reducer writes the other's gradient without running its hook.
TEST_P(MistakesTest, AParameterThatARankDoesNotUseIsAveragedThoughItWasBypassedBefore) {
  AcceleratorOptions options;
  options.ddp_kwargs.find_unused_parameters = true;
  on_ranks(
      [&](Accelerator& accelerator, RankContext& rank) {
        struct HeadsImpl : nn::Module {
          HeadsImpl()
              : heads{register_module("first", nn::Linear(4, 1)), register_module("second", nn::Linear(4, 1))} {}
          at::Tensor forward(const at::Tensor& x, int head) { return heads[head](x); }
          std::vector<nn::Linear> heads;
        };
        auto net = std::make_shared<HeadsImpl>();
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        accelerator.backward(model->forward(batch_of(rank), 0).mean() + model->forward(batch_of(rank), 1).mean());
        optimizer.zero_grad(
            /*set_to_none=*/false);  // of an unused parameter the reducer expects the gradient that it has seen
        accelerator.backward(model(batch_of(rank), rank.rank == 0 ? 0 : 1).square().mean());
        EXPECT_NO_THROW(optimizer.step());
        expect_equal_on_all_ranks(accelerator, net->parameters());
      },
      options);
}

TEST(MistakesOfOneRankTest, ForwardOfTheModuleIsThatOfTheModelOnOneRank) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  Accelerator accelerator;
  nn::Linear net(4, 1);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model->forward(at::ones({2, 4})).mean());
  EXPECT_NO_THROW(optimizer.step());
}

TEST(VoteOnAllModelsTest, AModelThatNoBackwardReachesIsComparedToo) {
  const auto report = sim::rehearse({.num_ranks = 3}, [](RankContext& rank) {
    Accelerator accelerator({}, rank);
    nn::Linear trained(2, 1), frozen(3, 1);
    torch::optim::SGD sgd(trained->parameters(), 0.01);
    auto [model, other, optimizer] = accelerator.prepare(trained, frozen, sgd);
    accelerator.backward(model(at::ones({2, 2})).mean());
    const c10::NoGradGuard no_grad;
    if (rank.rank == 1) frozen->weight.add_(1);
    optimizer.step();
  });
  EXPECT_THAT(message_of(report.error),
              HasSubstr("rank 1 has other bits than the rest, first in parameter weight (Float [1, 3])"));
}

TEST_P(MistakesTest, AModuleOnTheStackTrainsAsOneInAHolder) {
  const auto train = [&](auto make) {
    std::vector<at::Tensor> weights(kRanks);
    on_ranks([&](Accelerator& accelerator, RankContext& rank) {
      auto&& [net, parameters] = make();
      torch::optim::SGD sgd(parameters, 0.1);
      auto [model, optimizer] = accelerator.prepare(*net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      model->eval();
      weights[rank.rank] = torch::cat({accelerator.unwrap_model(model)->first->weight.detach().flatten(),
                                       model(batch_of(rank)).detach().flatten() * 0});
      EXPECT_EQ(model->modules().size(), 4U) << "LibTorch's own functions ask a module for its shared_ptr";
      expect_equal_on_all_ranks(accelerator, model.parameters());
    });
    return weights;
  };
  const auto stacked = train([] {
    auto net = std::make_unique<PlainNet>();  // owned by nobody's shared_ptr, as on the stack
    auto parameters = net->parameters();
    return std::pair(std::move(net), parameters);
  });
  const auto shared = train([] {
    auto net = std::make_shared<PlainNet>();
    auto parameters = net->parameters();
    return std::pair(std::move(net), parameters);
  });
  for (int rank = 0; rank < kRanks; ++rank) EXPECT_TRUE(stacked[rank].equal(shared[0]));
}

TEST_P(MistakesTest, AModuleOnTheStackIsShardedAndSaved) {
  on_ranks(
      [&](Accelerator& accelerator, RankContext& rank) {
        PlainNet net;
        torch::optim::Adam adam(net.parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, adam);
        accelerator.backward(model(batch_of(rank)).square().mean());
        optimizer.step();
        EXPECT_EQ(accelerator.get_state_dict(model).empty(), rank.rank != 0);
      },
      {.fsdp_plugin = FullyShardedDataParallelPlugin{}});
}

template <typename Out>
void train_encoder(Accelerator& accelerator, const at::Tensor& x) {
  auto net = std::make_shared<EncoderImpl<Out>>();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const auto out = model(x);
  EXPECT_EQ(out.mean.scalar_type(), at::kFloat);
  accelerator.backward(out.reconstruction.square().mean() + out.mean.square().mean());
  optimizer.step();
}

TEST_P(MistakesTest, AStructThatIsNoTreeIsRefusedByEveryWrapperThatMustSeeIt) {
  AcceleratorOptions search;
  search.ddp_kwargs.find_unused_parameters = true;
  const std::pair<AcceleratorOptions, const char*> wrappers[] = {
      {{.fsdp_plugin = FullyShardedDataParallelPlugin{}}, "a sharded model must see them"},
      {{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}, "a sharded model must see them"},
      {{.mixed_precision = "bf16"}, "mixed precision must see them"},
      {search, "find_unused_parameters or static_graph must see them"},
  };
  for (const auto& [options, why] : wrappers) {
    on_ranks(
        [&, why = why](Accelerator& accelerator, RankContext& rank) {
          EXPECT_THAT(
              message_of<ArgumentError>([&] { train_encoder<Outputs>(accelerator, batch_of(rank)); }),
              AllOf(HasSubstr(why), HasSubstr("natural_mistakes_test::Outputs"),
                    HasSubstr("template <> inline constexpr auto accel::tree_members<"), HasSubstr("= std::tuple(&")));
          accelerator.free_memory();
          train_encoder<KnownOutputs>(accelerator, batch_of(rank));
        },
        options);
  }
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    EXPECT_NO_THROW(train_encoder<Outputs>(accelerator, batch_of(rank))) << "plain DDP looks at no output";
  });
}

TEST_P(MistakesTest, ATemporaryOptimizerIsKept) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1), other(4, 1);
    auto [model, optimizer] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)));
    auto fused = accelerator.prepare(accel::optim::AdamW(other->parameters(), torch::optim::AdamWOptions(0.1)));
    auto shared = accelerator.prepare(std::make_shared<torch::optim::SGD>(other->parameters(), 0.1));
    std::unique_ptr<torch::optim::Optimizer> owned = std::make_unique<torch::optim::Adam>(other->parameters(), 0.1);
    auto borrowed = accelerator.prepare(owned);
    const auto before = net->weight.detach().clone();
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(batch_of(rank)).square().mean());
      for (auto& each : {optimizer, fused, shared, borrowed}) AcceleratedOptimizer(each).step();
      optimizer.zero_grad();
    }
    EXPECT_FALSE(net->weight.equal(before));
    EXPECT_EQ(&borrowed.optimizer(), owned.get());
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, ATemporaryLoaderAndALibTorchDatasetServe) {
  on_ranks([&](Accelerator& accelerator, RankContext&) {
    const auto table = at::arange(12).to(at::kFloat).view({12, 1});
    auto batches = accelerator.prepare(DataLoader(torch::data::datasets::TensorDataset(table), {.batch_size = 2}));
    std::vector<double> seen;
    for (auto& rows : batches) {
      const auto all = accelerator.gather_for_metrics(rows);
      for (std::int64_t row = 0; row < all.size(0); ++row) seen.push_back(all[row].item().toDouble());
    }
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
    std::size_t count = 0;
    for ([[maybe_unused]] auto& rows : *batches) ++count;
    EXPECT_EQ(count, 2U);
  });
}

// By rank, each with what it warned of.
std::vector<std::vector<std::string>> warnings_of(const std::function<void(Accelerator&)>& body,
                                                  AcceleratorOptions options = {}, int num_ranks = 3) {
  return collect_ranks(Backend::kGlooThreads, num_ranks, [&](RankContext& rank) {
    std::vector<std::string> warnings;
    rank.warn = [&](const std::string& text) { warnings.push_back(text); };
    Accelerator accelerator(options, rank);
    body(accelerator);
    return warnings;
  });
}

TEST(UnpreparedObjectsTest, ALoaderThatEveryRankReadsInFullIsTold) {
  const auto body = [](bool before, bool all_ranks) {
    return [=](Accelerator& accelerator) {
      nn::Linear net(1, 1);
      DataLoader loader(TensorDataset(at::zeros({6, 1})), {.batch_size = 2});
      const auto read = [&] {
        for ([[maybe_unused]] auto& batch : loader) {
        }
      };
      if (before) read();
      auto model = accelerator.prepare(net);
      if (!before && (all_ranks || accelerator.is_main_process())) read(), read();
    };
  };
  EXPECT_THAT(warnings_of(body(false, true)),
              ElementsAre(IsEmpty(),
                          ElementsAre(AllOf(HasSubstr("natural_mistakes_test.cpp:"),
                                            HasSubstr("of 6 samples (batch_size 2) that was not prepared"))),
                          IsEmpty()));
  EXPECT_THAT(warnings_of(body(true, true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()))
      << "statistics before training";
  EXPECT_THAT(warnings_of(body(false, false)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()))
      << "the main process evaluates";
  EXPECT_THAT(warnings_of(body(false, true), {}, 1), ElementsAre(IsEmpty()));
}

TEST(UnpreparedObjectsTest, AnOptimizerThatIsNotPreparedIsTold) {
  const auto body = [](bool prepares) {
    return [=](Accelerator& accelerator) {
      nn::Linear net(1, 1), evaluated(1, 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto model = accelerator.prepare(net);
      auto teacher = accelerator.prepare_model(evaluated.ptr(), {.evaluation_mode = true});
      std::optional<AcceleratedOptimizer> optimizer;
      if (prepares) optimizer = accelerator.prepare(sgd);
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(model(at::ones({2, 1})).mean());
        optimizer ? optimizer->step() : static_cast<void>(sgd.step());
      }
    };
  };
  EXPECT_THAT(warnings_of(body(false)),
              ElementsAre(ElementsAre(AllOf(HasSubstr("model 0 (torch::nn::LinearImpl) is prepared"),
                                            HasSubstr("no prepared optimizer"))),
                          IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {}, 1), ElementsAre(IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {.mixed_precision = "fp16"}, 1), ElementsAre(::testing::SizeIs(1)));
}

TEST(UnpreparedObjectsTest, AStepOfTheOptimizerBesideItsHandleIsTold) {
  const auto body = [](bool by_handle) {
    return [=](Accelerator& accelerator) {
      nn::Linear net(1, 1);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(model(at::ones({2, 1})).mean());
        by_handle ? optimizer.step() : static_cast<void>(sgd.step());
      }
    };
  };
  EXPECT_THAT(warnings_of(body(false)),
              ElementsAre(ElementsAre(HasSubstr("step() of the handle that prepare returned was never called")),
                          IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {}, 1), ElementsAre(IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {.gradient_accumulation_steps = 2}, 1), ElementsAre(::testing::SizeIs(1)));
}

TEST(UnpreparedObjectsTest, AParameterOfNoPreparedModelIsTold) {
  const auto body = [](bool prepares) {
    return [=](Accelerator& accelerator) {
      nn::Linear net(1, 1), other(1, 1);
      auto parameters = net->parameters();
      for (const auto& parameter : other->parameters()) parameters.push_back(parameter);
      torch::optim::SGD sgd(parameters, 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      std::optional<PreparedModel<nn::LinearImpl>> second;
      if (prepares) second = accelerator.prepare(other);
      for (int step = 0; step < 2; ++step) {
        const auto x = at::ones({2, 1});
        accelerator.backward((model(x) + (second ? (*second)(x) : other(x))).mean());
        optimizer.step();
      }
    };
  };
  EXPECT_THAT(
      warnings_of(body(false)),
      ElementsAre(
          ElementsAre(AllOf(HasSubstr("parameter 2 of shape [1, 1], and 1 more, belongs to no prepared model"))),
          IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {}, 1), ElementsAre(IsEmpty()));
}

TEST(LossesTest, BackwardOfTheLossItselfIsToldOrRefusedWhereItMatters) {
  const auto body = [](Accelerator& accelerator) {
    nn::Linear net(1, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    for (int step = 0; step < 4; ++step) {
      auto window = accelerator.accumulate(model);
      model(at::ones({2, 1})).mean().backward();
      optimizer.step();
    }
  };
  EXPECT_THAT(warnings_of(body), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body, {.gradient_accumulation_steps = 2}),
              ElementsAre(ElementsAre(HasSubstr("call accelerator.backward(loss), not loss.backward()")), IsEmpty(),
                          IsEmpty()));
  const auto refused = [&](AcceleratorOptions options) {
    warnings_of([&](Accelerator& accelerator) { EXPECT_THROW(body(accelerator), StateError); }, std::move(options), 1);
  };
  refused({.mixed_precision = "fp16"});
  refused({.loss_weighting = "exact"});
}

struct WriterImpl : nn::Module {
  WriterImpl() : layer(register_module("layer", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  at::Tensor generate(const at::Tensor& x) { return forward(forward(x)); }
  nn::Linear layer;
};

TEST(ShardedMembersTest, AMemberThatComputesWithPartsIsAnErrorThatNamesGatheredParameters) {
  for (const int num_ranks : {2, 3}) {
    const auto run = [&](bool gathers) {
      return sim::rehearse({.num_ranks = num_ranks}, [&](RankContext& rank) {
        Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, rank);
        auto model = accelerator.prepare(std::make_shared<WriterImpl>());
        const torch::NoGradGuard no_grad;
        if (!gathers) {
          model->generate(at::ones({2, 4}));
        } else {
          const auto whole = accelerator.gathered_parameters(model);
          model->generate(at::ones({2, 4}));
        }
      });
    };
    EXPECT_THAT(message_of(run(false).error),
                AllOf(HasSubstr("accelerator.gathered_parameters(model)"), HasSubstr("such as model->generate(...)")));
    EXPECT_EQ(message_of(run(true).error), "");
  }
}

TEST(CallSiteTest, AModelWithBuffersThatOneRankCallsAloneIsReportedByTheLineOfTheCall) {
  int line = 0;
  const auto report = sim::rehearse({.num_ranks = 2}, [&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    PlainNet net;
    auto model = accelerator.prepare(net);
    model(at::ones({2, 4}));
    accelerator.wait_for_everyone();
    if (rank.rank == 0) line = __LINE__, model(at::ones({2, 4}));
  });
  EXPECT_THAT(message_of(report.error), HasSubstr("natural_mistakes_test.cpp:" + std::to_string(line)));
}

TEST_P(MistakesTest, HandlesHaveTheMembersOfWhatTheyHold) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    StepLR step_lr(sgd, 1, 0.5);
    DataLoader loader(TensorDataset(at::zeros({6, 1})), {.batch_size = 2});
    auto [model, optimizer, batches, scheduler] = accelerator.prepare(net, sgd, loader, step_lr);
    model.eval();
    EXPECT_FALSE(net->is_training());
    model.train();
    EXPECT_TRUE(model.is_training());
    EXPECT_EQ(model.named_parameters().size(), 2U);
    EXPECT_EQ(optimizer.param_groups().size(), 1U);
    optimizer->set_lr(0.25);
    EXPECT_EQ(optimizer->lr(), 0.25);
    EXPECT_THROW(optimizer.set_lr(1, 1), ArgumentError);
    EXPECT_EQ(batches->size(), 1);
    accelerator.backward(model.forward(batch_of(rank)).mean());
    optimizer->step();
    optimizer->zero_grad();
    scheduler->step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

TEST_P(MistakesTest, APreparedModelIsSavedAndLoadedByLibTorchUnlessItIsSharded) {
  TemporaryFolder folder;
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1), plain(4, 1);
    auto model = accelerator.prepare(net);
    const auto path = folder.path("model" + std::to_string(rank.rank) + ".pt");
    torch::save(model, path);
    torch::load(plain, path);
    EXPECT_TRUE(plain->weight.equal(net->weight));
    torch::NoGradGuard no_grad;
    net->weight.zero_();
    torch::load(model, path);
    EXPECT_TRUE(plain->weight.equal(net->weight));
  });
  on_ranks(
      [&](Accelerator& accelerator, RankContext&) {
        nn::Linear net(4, 1);
        auto model = accelerator.prepare(net);
        EXPECT_THAT(message_of<StateError>([&] { torch::save(model, folder.path("sharded.pt")); }),
                    HasSubstr("use accelerator.save_model"));
      },
      {.fsdp_plugin = FullyShardedDataParallelPlugin{}});
}

TEST_P(MistakesTest, TensorsArePrinted) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    std::string text;
    rank.print = [&](const std::string& line) { text += line; };
    const auto values = at::ones({2});
    accelerator.print("loss", values, values.sizes(), 3);
    EXPECT_EQ(text, rank.rank == 0 ? "loss  1\n 1\n[ CPUFloatType{2} ] [2] 3\n" : "");
  });
}

}  // namespace
}  // namespace accel::testing::natural_mistakes_test
