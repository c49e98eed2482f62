#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <functional>
#include <vector>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

/// A program's first port of a LibTorch loop, run on several ranks of each backend.
namespace accel::testing::natural_mistakes_test {

namespace nn = torch::nn;

// A network as pytorch/examples writes it: without TORCH_MODULE, as an object on the stack.
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

}  // namespace accel::testing::natural_mistakes_test
