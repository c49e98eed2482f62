#pragma once

#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

/// Trainings whose program changes the model between steps. All ranks read the same data, so that every engine must
/// give the bits of one process.
namespace accel::testing::changing_parameters {

inline constexpr int kSteps = 8;

struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(3, 5))),
        head(register_module("head", torch::nn::Linear(5, 1))) {}
  at::Tensor forward(const at::Tensor& x) {
    return call(head, torch::tanh(skips_first ? torch::constant_pad_nd(x, {0, 2}) : call(first, x)));
  }
  void train_first(bool on) {
    for (auto& parameter : first->parameters()) parameter.requires_grad_(on);
  }
  torch::nn::Linear first, head;
  bool skips_first = false;
};
TORCH_MODULE(Net);

using Change = std::function<void(Net&, int step)>;

inline Net make_net() {
  torch::manual_seed(5);
  return {};
}

inline at::Tensor input(int step) { return at::arange(12, at::kFloat).view({4, 3}).mul(0.1 * (step + 1)).sin(); }

/// What LibTorch alone computes on one process.
inline std::vector<at::Tensor> expected_values(const Change& change) {
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  for (int step = 0; step < kSteps; ++step) {
    change(net, step);
    net->forward(input(step)).square().mean().backward();
    sgd.step();
    sgd.zero_grad();
  }
  return net->parameters();
}

/// Returns the complete parameters after the training of one rank.
inline std::vector<at::Tensor> trained_values(RankContext& rank, const AcceleratorOptions& options,
                                              const Change& change) {
  Accelerator accelerator(options, rank);
  auto net = make_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < kSteps; ++step) {
    change(net, step);
    accelerator.backward(model(input(step)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto full = accelerator.gathered_parameters(model);
  std::vector<at::Tensor> values;
  for (const auto& parameter : net->parameters()) values.push_back(parameter.detach().clone());
  return values;
}

inline std::map<std::string, AcceleratorOptions> engines() {
  std::map<std::string, AcceleratorOptions> engines{
      {"DDP", {}},
      {"DDP, bucket views", {.ddp_kwargs = {.gradient_as_bucket_view = true}}},
      {"FSDP", {.fsdp_plugin = FullyShardedDataParallelPlugin()}},
      {"FSDP 2", {.fsdp_plugin = FullyShardedDataParallelPlugin{.fsdp_version = 2}}},
      {"FSDP, wrapped",
       {.fsdp_plugin = FullyShardedDataParallelPlugin{.auto_wrap_policy = "SIZE_BASED_WRAP", .min_num_params = 1}}}};
  for (const int stage : {1, 2, 3})
    engines[fmt::format("ZeRO {}", stage)] = {.deepspeed_plugin =
                                                  DeepSpeedPlugin{.gradient_clipping = "0", .zero_stage = stage}};
  return engines;
}

inline void expect_values_of_one_process(const Change& change,
                                         const std::map<std::string, AcceleratorOptions>& engines) {
  const auto expected = expected_values(change);
  for (const auto& [engine, options] : engines) {
    for (const int num_ranks : {1, 2, 4}) {
      for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
        const auto where = fmt::format("{} on {} ranks of {}", engine, num_ranks, name_of(backend));
        std::vector<std::vector<at::Tensor>> ranks;
        ASSERT_NO_THROW(ranks = collect_ranks(
                            backend, num_ranks,
                            [&options, &change](RankContext& rank) { return trained_values(rank, options, change); }))
            << where;
        for (const auto& values : ranks) {
          for (std::size_t place = 0; place < expected.size(); ++place)
            ASSERT_TRUE(values[place].equal(expected[place])) << where << ", parameter " << place;
        }
      }
    }
  }
}

inline void expect_values_of_one_process(const Change& change) { expect_values_of_one_process(change, engines()); }

}  // namespace accel::testing::changing_parameters
