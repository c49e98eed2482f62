// What a port of a LibTorch loop forgets to prepare, or calls past the prepared handle. Each is correct C++ and
// trains a wrong model, so it is reported as a warning with the line of the program.
#include "sim/backend/simulate.hpp"
#include "tests/reference/accelerator/natural_mistakes.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing::natural_mistakes_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the warnings of each rank.
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

// Every rank reads all samples, so an epoch costs N times as much and gradients see no more data.
TEST(UnpreparedObjectsTest, ALoaderThatEveryRankReadsInFullIsReported) {
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
                          ElementsAre(AllOf(HasSubstr("unprepared_objects_test.cpp:"),
                                            HasSubstr("of 6 samples (batch_size 2) that was not prepared"))),
                          IsEmpty()));
  EXPECT_THAT(warnings_of(body(true, true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()))
      << "statistics before training";
  EXPECT_THAT(warnings_of(body(false, false)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()))
      << "the main process evaluates";
  EXPECT_THAT(warnings_of(body(false, true), {}, 1), ElementsAre(IsEmpty()));
  const auto reads_what_prepare_returns = [](Accelerator& accelerator) {
    nn::Linear net(1, 1);
    auto [model, batches] = accelerator.prepare(net, DataLoader(TensorDataset(at::zeros({6, 1})), {.batch_size = 2}));
    for ([[maybe_unused]] auto& batch : batches) {
    }
  };
  EXPECT_THAT(warnings_of(reads_what_prepare_returns), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
}

// It steps in every micro-batch and ignores skipped steps. Models that are only evaluated must not be reported.
TEST(UnpreparedObjectsTest, AnOptimizerThatIsNotPreparedIsReported) {
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

// Stepping the original optimizer skips accumulation, scaling and guards without an error.
TEST(UnpreparedObjectsTest, AStepPastTheHandleOfTheOptimizerIsReported) {
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

// Its gradients are never synchronised, so the ranks drift apart.
TEST(UnpreparedObjectsTest, AParameterOfNoPreparedModelIsRefused) {
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
  EXPECT_THAT(message_of<Error>([&] { warnings_of(body(false)); }),
              HasSubstr("belong to no prepared model, so their gradients are not averaged over the 3 ranks: 2 of shape "
                        "[1, 1]; 3 of shape [1]; prepare the module"));
  EXPECT_THAT(warnings_of(body(true)), ElementsAre(IsEmpty(), IsEmpty(), IsEmpty()));
  EXPECT_THAT(warnings_of(body(false), {}, 1), ElementsAre(IsEmpty()));
}

// loss.backward() skips the division by accumulation steps and the loss scale.
TEST(LossesTest, BackwardOfTheLossItselfIsReportedOrRejected) {
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

// A module with a second member function that calls forward.
struct WriterImpl : nn::Module {
  WriterImpl() : layer(register_module("layer", nn::Linear(4, 4))) {}
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  at::Tensor generate(const at::Tensor& x) { return forward(forward(x)); }
  nn::Linear layer;
};

// Such a member is called without the adapter that gathers the weights.
TEST(ShardedMembersTest, AMemberThatComputesWithShardsIsAnError) {
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

// A model with buffers broadcasts them in forward, so a forward under `if (is_main_process())` hangs.
TEST(CallSiteTest, AForwardOfOneRankIsReportedByTheLineOfTheCall) {
  int line = 0;
  const auto report = sim::rehearse({.num_ranks = 2}, [&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    PlainNet net;
    auto model = accelerator.prepare(net);
    model(at::ones({2, 4}));
    accelerator.wait_for_everyone();
    if (rank.rank == 0) line = __LINE__, model(at::ones({2, 4}));
  });
  EXPECT_THAT(message_of(report.error), HasSubstr("unprepared_objects_test.cpp:" + std::to_string(line)));
}

}  // namespace
}  // namespace accel::testing::natural_mistakes_test
