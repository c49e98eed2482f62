#pragma once

#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/modulelist.h>

#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

#include "reference/modules/call.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/sharded/sharded_model.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/torch.hpp"

/// A small model with nested, shared, frozen and odd-sized parts, and its training with shards, with DDP and on one
/// rank. Thread rule: the rank's thread.
namespace accel::testing {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int width)
      : inner(register_module("inner", torch::nn::Linear(width, 3))),
        outer(register_module("outer", torch::nn::Linear(3, width))) {
    scale = register_parameter("scale", torch::ones({}));
    empty = register_parameter("empty", torch::ones({0, width}));
    frozen = register_parameter("frozen", torch::full({width}, 2.0), /*requires_grad=*/false);
    unused = register_parameter("unused", torch::ones({width}));
    calls = register_buffer("calls", torch::zeros({}));
  }
  at::Tensor forward(const at::Tensor& x) { return x + accel::call(outer, accel::call(inner, x * frozen)) * scale; }
  torch::nn::Linear inner, outer;
  at::Tensor scale, empty, frozen, unused, calls;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int width, int num_blocks) : head(register_module("head", torch::nn::Linear(width, width))) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(width));
    register_module("tail", tail);
    tail->push_back(torch::nn::Linear(width, 5));
    tail->push_back(torch::nn::ReLU());
    tail->push_back(torch::nn::Linear(5, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto values = head(x);
    for (const auto& block : *blocks) values = accel::call(block->as<BlockImpl>(), values);
    return torch::linear(tail->forward(values), head->weight);  // shared with the head
  }
  torch::nn::Linear head;
  torch::nn::ModuleList blocks;
  torch::nn::Sequential tail;
};
TORCH_MODULE(Net);

/// The same model on every rank. With `integer`, parameters are small integers, so that sums of gradients are exact
/// in any order.
inline Net make_net(int width = 4, int num_blocks = 3, bool integer = false) {
  torch::manual_seed(7);
  Net net(width, num_blocks);
  if (!integer) return net;
  const torch::NoGradGuard no_grad;
  for (auto& parameter : net->parameters()) parameter.random_(-1, 2);
  return net;
}

inline sharded::ShardGroups groups_of(RankContext& rank) {
  std::vector<int> all(rank.world_size);
  std::iota(all.begin(), all.end(), 0);
  return {rank.new_group(all), rank.new_group(all), std::nullopt};
}

/// What the prepared model does around its forward.
inline at::Tensor call_sharded(sharded::ShardedModel& sharded, Net& net, const at::Tensor& x) {
  sharded.before_forward();
  std::vector<at::Tensor> outputs{net->forward(x)};
  sharded.after_forward(outputs);
  return outputs.front();
}

inline at::Tensor batch_of(int rank, int step, int width, bool integer) {
  auto generator = make_generator(1000 * step + rank);
  return integer ? torch::randint(-1, 2, {2, width}, generator, torch::kFloat) : torch::randn({2, width}, generator);
}

/// Compares the tensors in `expected`; `found` may have more, namely shared parameters.
inline void expect_equal(const NamedTensors& expected, const NamedTensors& found) {
  const std::map<std::string, at::Tensor> by_name(found.begin(), found.end());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(by_name.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor, by_name.at(name))) << name << "\n" << tensor << "\n" << by_name.at(name);
  }
}

}  // namespace accel::testing
