// The two halves of a backward pass have the bits of the complete one, and the second half does not repeat the first.
#include "reference/pipeline/stage_backward.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include "reference/modules/call.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::stage_backward_test {
namespace {

namespace nn = torch::nn;
using pipeline::StageBackward;
using Tensors = std::vector<at::Tensor>;

// Counts the gradients of its input that are computed.
struct Counted : torch::autograd::Function<Counted> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, std::int64_t counter) {
    context->saved_data["counter"] = counter;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    ++*reinterpret_cast<int*>(context->saved_data["counter"].toInt());
    return {gradients[0], at::Tensor()};
  }
};

struct Gradients {
  Tensors of_inputs, of_weights;
};

// `stage` computes outputs from inputs and weights.
using StageFunction = std::function<Tensors(const Tensors& inputs, const Tensors& weights)>;

// `is_apart`: no gradient of a weight is computed in the first half.
Gradients gradients_of(const StageFunction& stage, Tensors inputs, Tensors weights, bool is_split,
                       bool is_apart = true) {
  for (auto* leaves : {&inputs, &weights}) {
    for (auto& leaf : *leaves) leaf = leaf.detach().clone().set_requires_grad(leaf.is_floating_point());
  }
  const auto outputs = stage(inputs, weights);
  torch::manual_seed(4);
  Tensors gradients;
  for (const auto& output : outputs) gradients.push_back(torch::randn_like(output));
  StageBackward backward(outputs, inputs);
  Gradients result{.of_inputs = is_split ? backward.of_inputs(gradients) : backward.complete(gradients)};
  if (is_split) {
    for (const auto& weight : weights) EXPECT_EQ(weight.grad().defined(), !is_apart);
    backward.of_weights();
  }
  for (const auto& input : inputs) EXPECT_FALSE(input.grad().defined());
  for (const auto& weight : weights) result.of_weights.push_back(weight.grad());
  return result;
}

void expect_equal_halves(const StageFunction& stage, const Tensors& inputs, const Tensors& weights,
                         bool is_apart = true) {
  const auto complete = gradients_of(stage, inputs, weights, false);
  const auto halves = gradients_of(stage, inputs, weights, true, is_apart);
  for (const auto& [one, other] :
       {std::pair(complete.of_inputs, halves.of_inputs), std::pair(complete.of_weights, halves.of_weights)}) {
    ASSERT_EQ(one.size(), other.size());
    for (std::size_t index = 0; index < one.size(); ++index) {
      ASSERT_EQ(one[index].defined(), other[index].defined()) << index;
      if (one[index].defined()) EXPECT_TRUE(one[index].equal(other[index])) << index;
    }
  }
}

Tensors random_tensors(std::initializer_list<at::IntArrayRef> sizes) {
  torch::manual_seed(3);
  Tensors tensors;
  for (const auto& size : sizes) tensors.push_back(torch::randn(size));
  return tensors;
}

TEST(StageBackwardTest, LayersInARow) {
  const auto stage = [](const Tensors& x, const Tensors& w) {
    return Tensors{torch::tanh(torch::addmm(w[1], torch::tanh(torch::mm(x[0], w[0])), w[2].t()))};
  };
  expect_equal_halves(stage, random_tensors({{3, 4}}), random_tensors({{4, 5}, {6}, {6, 5}}));
}

TEST(StageBackwardTest, AResidualStreamAndSeveralOutputs) {
  const auto stage = [](const Tensors& x, const Tensors& w) {
    const auto y = x[0] + torch::mm(x[0], w[0]) * x[1];
    return Tensors{y.sigmoid(), y + w[1], w[2] * 2};  // the last output does not depend on the inputs
  };
  expect_equal_halves(stage, random_tensors({{4, 4}, {4, 4}}), random_tensors({{4, 4}, {4}, {4}}));
}

TEST(StageBackwardTest, AWeightThatIsUsedTwice) {
  const auto stage = [](const Tensors& x, const Tensors& w) {
    return Tensors{torch::mm(torch::mm(x[0], w[0]).tanh(), w[0]) + w[0].sum()};
  };
  expect_equal_halves(stage, random_tensors({{4, 4}}), random_tensors({{4, 4}}), /*is_apart=*/false);
}

TEST(StageBackwardTest, InputsWithoutGradients) {
  const auto stage = [](const Tensors& x, const Tensors& w) { return Tensors{torch::embedding(w[0], x[0]).tanh()}; };
  expect_equal_halves(stage, {torch::tensor({1, 0, 2})}, random_tensors({{3, 4}}));
}

TEST(StageBackwardTest, AnInputThatIsNotUsedHasNoGradient) {
  const auto stage = [](const Tensors& x, const Tensors& w) { return Tensors{torch::mm(x[0], w[0])}; };
  expect_equal_halves(stage, random_tensors({{4, 4}, {2}}), random_tensors({{4, 4}}));
}

// A recomputed layer runs its own backward pass, which adds the gradients of its weights.
TEST(StageBackwardTest, RecomputedLayersRunOnce) {
  const auto stage = [](const Tensors& x, const Tensors& w) {
    const auto recomputed = [&w](const Tensors& inputs) { return Tensors{torch::mm(inputs[0], w[0]).tanh()}; };
    return Tensors{detail::checkpoint(recomputed, {x[0].sigmoid()})[0] * 2};
  };
  expect_equal_halves(stage, random_tensors({{4, 4}}), random_tensors({{4, 4}}), /*is_apart=*/false);
  expect_equal_halves(stage, {torch::tensor({{1, 2}, {3, 4}}).to(torch::kLong)}, random_tensors({{2, 2}}));
}

TEST(StageBackwardTest, AStageWithoutWeightsRunsOnce) {
  int count = 0;
  const auto counter = reinterpret_cast<std::int64_t>(&count);
  const auto stage = [&](const Tensors& x, const Tensors&) { return Tensors{Counted::apply(x[0], counter).tanh()}; };
  (void)gradients_of(stage, random_tensors({{4, 4}}), {}, true);
  EXPECT_EQ(count, 1);
}

TEST(StageBackwardTest, TheSecondHalfDoesNotRepeatTheFirst) {
  int count = 0;
  const auto counter = reinterpret_cast<std::int64_t>(&count);
  const auto stage = [&](const Tensors& x, const Tensors& w) {
    return Tensors{
        torch::mm(Counted::apply(torch::mm(Counted::apply(torch::mm(x[0], w[0]), counter), w[1]), counter), w[2])};
  };
  (void)gradients_of(stage, random_tensors({{4, 4}}), random_tensors({{4, 4}, {4, 4}, {4, 4}}), true);
  EXPECT_EQ(count, 2);
}

}  // namespace
}  // namespace accel::testing::stage_backward_test
