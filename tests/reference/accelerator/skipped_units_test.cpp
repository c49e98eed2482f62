// A unit that a step's loss does not use has no gradient and is not stepped, in every engine; a second backward pass of
// sharded models is an error.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/reference/accelerator/changing_parameters.hpp"
#include "tests/support/message_of.hpp"

namespace accel::testing::changing_parameters {
namespace {

using ::testing::HasSubstr;

std::map<std::string, AcceleratorOptions> engines_with_unused_parameters() {
  auto all = engines();
  for (auto& [name, options] : all) {
    if (name.starts_with("DDP")) options.ddp_kwargs.find_unused_parameters = true;
  }
  return all;
}

// No gradient, no step: neither weight decay nor momentum moves it.
TEST(SkippedUnitsTest, AUnitThatAStepSkipsIsNotStepped) {
  expect_values_of_one_process([](Net& net, int step) { net->skips_first = step % 3 == 1; },
                               engines_with_unused_parameters());
  expect_values_of_one_process([](Net& net, int step) { net->skips_first = step < 2; },
                               engines_with_unused_parameters());
}

// Ranks that use the unit decide: all ranks step it by the mean of their gradients. Wrapped units need every rank.
TEST(SkippedUnitsTest, AUnitThatSomeRanksSkipIsSteppedOnAll) {
  const Change rank_0_skips = [](Net& net, int step) { net->skips_first = step % 2 == 1 && current_rank().rank == 0; };
  auto all = engines_with_unused_parameters();
  for (const auto* wrapped : {"FSDP, wrapped", "ZeRO 3"}) all.erase(wrapped);
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const int num_ranks : {2, 4}) {
      const auto values = [&](const AcceleratorOptions& options) {
        return collect_ranks(backend, num_ranks,
                             [&](RankContext& rank) { return trained_values(rank, options, rank_0_skips); });
      };
      const auto expected = values(all.at("DDP")).front();
      for (const auto& [engine, options] : all) {
        for (const auto& found : values(options)) {
          for (std::size_t place = 0; place < expected.size(); ++place)
            EXPECT_TRUE(at::allclose(found[place], expected[place], 1e-6, 1e-7)) << engine << ", parameter " << place;
        }
      }
    }
  }
}

TEST(SkippedUnitsTest, ASecondBackwardPassOfASetOfShardsIsOneSentence) {
  for (const auto& [engine, options] : engines()) {
    if (engine.starts_with("DDP")) continue;
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      for (const int num_ranks : {1, 2}) {
        run_ranks(backend, num_ranks, [&options = options, &engine = engine](RankContext& rank) {
          Accelerator accelerator(options, rank);
          auto net = make_net();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          auto x = input(0).requires_grad_();
          const auto loss = model(x).square().mean();
          EXPECT_THAT(message_of<Error>([&] {
                        torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true);
                      }),
                      HasSubstr("create_graph is unsupported for sharded models"))
              << engine;
        });
      }
    }
  }
}

}  // namespace
}  // namespace accel::testing::changing_parameters
