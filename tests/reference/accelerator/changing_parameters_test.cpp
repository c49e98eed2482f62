// Programs freeze, unfreeze, convert, load and replace parameters after prepare. All ranks read the same data here, so
// training must give the bits of one process, or end in an error that names the parameter.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/serialize.h>

#include <accel/accel.hpp>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/reference/accelerator/changing_parameters.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::changing_parameters {
namespace {

namespace nn = torch::nn;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ChangingParametersTest, NothingChanges) {
  expect_values_of_one_process([](Net&, int) {});
}

// Momentum and weight decay must not move it either.
TEST(ChangingParametersTest, AFrozenParameterIsNotStepped) {
  expect_values_of_one_process([](Net& net, int step) {
    if (step == 3) net->first->weight.requires_grad_(false);
  });
  expect_values_of_one_process([](Net& net, int step) {
    if (step == 3) net->train_first(false);
  });
}

TEST(ChangingParametersTest, AnUnfrozenParameterIsTrained) {
  expect_values_of_one_process([](Net& net, int step) { net->train_first(step >= 3); });
  expect_values_of_one_process([](Net& net, int step) { net->head->bias.requires_grad_(step >= 3); });
}

TEST(ChangingParametersTest, HalvesAreTrainedInTurn) {
  expect_values_of_one_process([](Net& net, int step) {
    net->train_first(step % 2 == 0);
    for (auto& parameter : net->head->parameters()) parameter.requires_grad_(step % 2 == 1);
  });
}

TEST(ChangingParametersTest, AParameterIsConvertedAndBack) {
  expect_values_of_one_process([](Net& net, int step) {
    if (step != 3) return;
    net->to(torch::kDouble);
    net->to(torch::kFloat);
  });
}

TEST(ChangingParametersTest, ValuesAreLoadedIntoTheModule) {
  std::stringstream stored;
  {
    torch::manual_seed(6);
    torch::save(Net(), stored);
  }
  expect_values_of_one_process([text = stored.str()](Net& net, int step) {
    if (step != 3) return;
    std::istringstream file(text);
    torch::load(net, file);
  });
}

// Without a modifier_rank changes inside the scope are discarded, however they are made.
TEST(ChangingParametersTest, ValuesLoadedIntoGatheredParametersAreDiscarded) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 2, [](RankContext& rank) {
      Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin()}, rank);
      auto net = make_net();
      const auto before = net->first->weight.detach().clone();
      auto model = accelerator.prepare(net);
      {
        const auto full = accelerator.gathered_parameters(model);
        if (rank.rank == 0) net->first->weight.set_data(at::zeros({5, 3}));
      }
      const auto full = accelerator.gathered_parameters(model);
      EXPECT_TRUE(net->first->weight.equal(before));
    });
  }
}

TEST(ChangingParametersTest, AParameterGetsOtherData) {
  expect_values_of_one_process([](Net& net, int step) {
    if (step == 3) net->first->weight.set_data(at::arange(15, at::kFloat).view({5, 3}) / 15);
  });
}

// A graph that holds a parameter's accumulator must not see the shapes of shards.
TEST(ChangingParametersTest, ACloneWithAGraphLivesAcrossPrepare) {
  for (const auto& [engine, options] : engines()) {
    for (const int num_ranks : {1, 2, 4}) {
      run_ranks(Backend::kSim, num_ranks, [&options](RankContext& rank) {
        Accelerator accelerator(options, rank);
        auto net = make_net();
        const auto before = net->first->weight.clone(), bias = net->first->bias * 2;
        torch::optim::SGD sgd(net->parameters(), 0.1);
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const auto after = net->head->weight.clone();
        for (int step = 0; step < 2; ++step) {
          accelerator.backward(model(input(step)).square().mean());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
    }
  }
}

// --- errors in the step of the change ---

std::string error_of(int num_ranks, Backend backend, const AcceleratorOptions& options, const Change& change) {
  return message_of<Error>(
      [&] { run_ranks(backend, num_ranks, [&](RankContext& rank) { (void)trained_values(rank, options, change); }); });
}

void expect_error(const Change& change, const ::testing::Matcher<std::string>& expected,
                  const std::map<std::string, AcceleratorOptions>& engines) {
  for (const auto& [engine, options] : engines) {
    for (const int num_ranks : {1, 2, 4}) {
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        EXPECT_THAT(error_of(num_ranks, backend, options, change),
                    AllOf(expected, Not(HasSubstr("frame #")), Not(HasSubstr("Expected to have finished"))))
            << engine << " on " << num_ranks << " ranks of " << name_of(backend);
      }
    }
  }
}

TEST(ChangingParametersTest, AnAddedOrReplacedParameterIsRefused) {
  expect_error(
      [](Net& net, int step) {
        if (step == 3) net->first->register_parameter("scale", at::ones({1}));
      },
      HasSubstr("have changed since `prepare`: 'first.scale' was added"), engines());
  expect_error(
      [](Net& net, int step) {
        if (step == 3) net->head = net->replace_module("head", nn::Linear(5, 1));
      },
      HasSubstr("'head.bias' was replaced, 'head.weight' was replaced"), engines());
}

TEST(ChangingParametersTest, AConversionOfAShardedModelIsRefused) {
  auto sharded = engines();
  std::erase_if(sharded, [](const auto& item) { return item.first.starts_with("DDP"); });
  expect_error(
      [](Net& net, int step) {
        if (step == 3) net->to(torch::kDouble);
      },
      HasSubstr("now has dtype Double"), sharded);
}

// The averaging of the others waits for it.
TEST(ChangingParametersTest, AnUnusedParameterIsNamedInItsStep) {
  for (const int num_ranks : {1, 2, 4}) {
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      std::vector<int> steps(num_ranks, 0);
      const auto message = message_of<Error>([&] {
        run_ranks(backend, num_ranks, [&](RankContext& rank) {
          Accelerator accelerator({}, rank);
          auto net = make_net();
          net->register_parameter("unused", at::ones({2}));
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, sgd);
          for (int step = 0; step < 2; ++step) {
            accelerator.backward(model(input(step)).square().mean());
            optimizer.step();
            optimizer.zero_grad();
            ++steps[rank.rank];
          }
        });
      });
      EXPECT_THAT(message, AllOf(HasSubstr("optimizer.step: the last backward pass gave 'unused' no gradient"),
                                 HasSubstr("find_unused_parameters")));
      EXPECT_EQ(steps, std::vector<int>(num_ranks, 0));
    }
  }
}

// --- gradients that nobody averages ---

void train_by_hand(RankContext& rank, const AcceleratorOptions& options, bool averages) {
  Accelerator accelerator(options, rank);
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {
    const auto loss = net->forward(input(step + rank.rank)).square().mean();
    const auto gradients = torch::autograd::grad({loss}, net->parameters());
    for (std::size_t place = 0; place < gradients.size(); ++place) {
      const auto gradient = averages ? accelerator.reduce(gradients[place], "mean") : gradients[place];
      net->parameters()[place].mutable_grad() = gradient;
    }
    averages ? optimizer.step({.averaged = true}) : optimizer.step();
  }
  for (const auto& parameter : net->parameters()) {
    const auto all = accelerator.gather(parameter.detach().unsqueeze(0));
    for (int other = 1; other < rank.world_size; ++other) EXPECT_TRUE(all[other].equal(all[0]));
  }
}

TEST(ChangingParametersTest, GradientsThatTheProgramWritesMustBeAveraged) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    EXPECT_THAT(message_of<Error>([&] {
                  run_ranks(backend, 2, [](RankContext& rank) { train_by_hand(rank, {}, /*averages=*/false); });
                }),
                HasSubstr("optimizer.step: the gradients of 'first.weight' and 3 more parameters were written by the "
                          "program"));
    run_ranks(backend, 2, [](RankContext& rank) { train_by_hand(rank, {}, /*averages=*/true); });
    run_ranks(backend, 1, [](RankContext& rank) { train_by_hand(rank, {}, /*averages=*/false); });
  }
}

// --- prepared again ---

// Growing a layer: the module and a new optimizer are prepared again.
TEST(ChangingParametersTest, AModuleIsPreparedAgainAfterItHasGrown) {
  for (const auto& [engine, options] : engines()) {
    if (options.deepspeed_plugin) continue;  // one model per plugin
    for (const int num_ranks : {1, 2, 4}) {
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        const auto ranks = collect_ranks(backend, num_ranks, [&options](RankContext& rank) {
          Accelerator accelerator(options, rank);
          auto net = make_net();
          torch::optim::SGD sgd(net->parameters(), 0.1);
          auto [old_model, old_optimizer] = accelerator.prepare(net, sgd);
          accelerator.backward(old_model(input(0)).square().mean());
          old_optimizer.step();
          old_optimizer.zero_grad();
          torch::manual_seed(6 + (rank.rank > 0 ? 1 : 0));
          net->head = net->replace_module("head", nn::Linear(5, 2));
          torch::manual_seed(8);
          auto replacement = nn::Linear(5, 2);
          if (rank.rank == 0) replacement = net->head;
          net->head = net->replace_module("head", replacement);
          torch::optim::SGD grown(net->parameters(), 0.1);
          auto [model, optimizer] = accelerator.prepare(net, grown);
          EXPECT_THAT(message_of<StateError>([&] { (void)old_model(input(0)); }), HasSubstr("was prepared again"));
          for (int step = 1; step < 4; ++step) {
            accelerator.backward(model(input(step)).square().mean());
            optimizer.step();
            optimizer.zero_grad();
          }
          EXPECT_EQ(accelerator.get_state_dict(model).size(), 4U * (rank.rank == 0 || !options.fsdp_plugin));
          const auto full = accelerator.gathered_parameters(model);
          std::vector<at::Tensor> values;
          for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
          return values;
        });
        for (const auto& values : ranks) {
          EXPECT_EQ(values[2].size(0), 2);
          for (std::size_t place = 0; place < values.size(); ++place)
            EXPECT_TRUE(values[place].equal(ranks[0][place])) << engine << " on " << num_ranks << " ranks";
        }
      }
    }
  }
}

// --- nothing to train ---

TEST(ChangingParametersTest, AModelWithoutTrainableParametersIsPrepared) {
  for (const auto& [engine, options] : engines()) {
    for (const int num_ranks : {1, 2}) {
      run_ranks(Backend::kSim, num_ranks, [&options](RankContext& rank) {
        Accelerator accelerator(options, rank);
        auto net = make_net();
        const auto expected = net->forward(input(0)).detach();
        for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
        auto model = accelerator.prepare(net);
        EXPECT_TRUE(model(input(0)).equal(expected));
      });
    }
  }
}

}  // namespace
}  // namespace accel::testing::changing_parameters
