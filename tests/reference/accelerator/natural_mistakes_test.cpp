// Tests of mistakes that ports of LibTorch loops make at first. Each of them must either work or end in an error
// that says what to write; none may silently train another model than the author meant. Mistakes that do not
// compile are in tests/programs/mistakes_test.cpp.
#include "tests/reference/accelerator/natural_mistakes.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing::natural_mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Backends, MistakesTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// The gradients of such a forward are not averaged, so replicas would diverge without any error.
TEST_P(MistakesTest, ForwardThatBypassesThePreparedModelIsRejectedAtTheStep) {
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

// DDP averages in the first backward. Gradients of a second one would stay local.
TEST_P(MistakesTest, TwoBackwardPassesOfOneForwardAreRejectedButOneOfTheSumIsNot) {
  on_ranks([&](Accelerator& accelerator, RankContext& rank) {
    nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const auto real = model(batch_of(rank)).mean(), fake = model(-batch_of(rank)).square().mean();
    accelerator.backward(real);
    accelerator.backward(fake);
    EXPECT_THAT(message_of<StateError>([&] { optimizer.step(); }),
                HasSubstr("add two losses of one forward and call backward once"));
    optimizer.zero_grad(/*set_to_none=*/false);
    const auto again = model(batch_of(rank)).mean(), other = model(-batch_of(rank)).square().mean();
    accelerator.backward(again + other);
    optimizer.step();
    expect_equal_on_all_ranks(accelerator, net->parameters());
  });
}

// Local SGD keeps gradients local on purpose, so the check for unsynchronised steps must not report it.
TEST_P(MistakesTest, GradientsKeptLocalByNoSyncAreAccepted) {
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

// Every micro-batch but the last is local anyway, so a bypass there is averaged with the window and harmless.
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

// The encoder is part of the second model. Its gradients are synchronised whichever of the two runs.
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

// The parameter belongs to a model without synchronisation and to one with it.
TEST_P(MistakesTest, NoSyncOnOneOfTwoModelsWithASharedParameterIsAccepted) {
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

// A program may average gradients itself, if it declares so with no_sync.
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

// LBFGS calls the closure several times, and each call needs the check.
TEST_P(MistakesTest, AClosureThatBypassesThePreparedModelIsRejected) {
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

// Each rank uses one of two heads. The reducer writes the gradient of the other head without running its hook.
TEST_P(MistakesTest, AnUnusedParameterIsAveragedAfterABypass) {
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

// With a single rank there is nothing to average, so calling the module is allowed.
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

// A frozen teacher or an EMA copy that differs between ranks changes losses without changing any gradient.
TEST(VoteOnAllModelsTest, AModelWithoutBackwardIsComparedToo) {
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
              HasSubstr("rank 1 differs from the rest, first in parameter weight (Float [1, 3])"));
}

}  // namespace
}  // namespace accel::testing::natural_mistakes_test
