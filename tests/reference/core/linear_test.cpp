#include "reference/core/linear.hpp"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/forward_grad.h>

#include <functional>
#include <tuple>

#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

using ::testing::HasSubstr;

namespace accel::testing {
namespace {

using torch::autograd::grad;

// The same bits: a NaN equals itself, 0 differs from -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         a.contiguous().view(at::kByte).equal(b.contiguous().view(at::kByte));
}

struct Layer {
  at::Tensor input, weight, bias;
  [[nodiscard]] at::Tensor of_libtorch() const { return at::linear(input, weight, bias); }
  [[nodiscard]] at::Tensor of_one_node() const { return plain_linear(input, weight, bias).value(); }
};

Layer layer_of(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType dtype = at::kFloat) {
  const auto trained = [&](at::IntArrayRef sizes) { return at::randn(sizes, dtype).requires_grad_(); };
  return {trained({rows, in}), trained({out, in}), trained({out})};
}

// A matrix of these sizes with rows, with columns, or with gaps.
at::Tensor laid_out(std::int64_t rows, std::int64_t columns, int layout) {
  if (layout == 0) return at::randn({columns, rows}).t();
  if (layout == 1) return at::randn({rows, columns + 3}).narrow(1, 1, columns);
  if (layout == 2) return at::randn({1, columns}).expand({rows, columns});
  return at::randn({rows, columns});
}

std::vector<at::Tensor> trained(const Layer& layer) {
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : {layer.input, layer.weight, layer.bias}) {
    if (tensor.requires_grad()) tensors.push_back(tensor);
  }
  return tensors;
}

std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

TEST(LinearLaws, ResultsAndBothDerivativesHaveTheBitsOfLibTorch) {
  expect_property(400, [] {
    torch::manual_seed(*rc::gen::arbitrary<int>());
    const auto rows = pick(0, 90), in = pick(0, 90), out = pick(0, 90);
    const auto layout = [] { return pick(0, 8); };
    Layer layer{laid_out(rows, in, layout()), laid_out(out, in, layout()), pick(0, 4) > 0 ? at::randn({out}) : at::randn({1})};
    for (auto* tensor : {&layer.input, &layer.weight, &layer.bias}) tensor->requires_grad_(pick(0, 4) > 0);
    const auto ours = plain_linear(layer.input, layer.weight, layer.bias);
    RC_TAG(ours ? "one node" : "not plain");
    if (!ours) return;
    const auto theirs = layer.of_libtorch();
    RC_ASSERT(same_bits(*ours, theirs));
    RC_ASSERT(ours->requires_grad() == theirs.requires_grad());
    const auto inputs = trained(layer);
    if (inputs.empty()) return;
    const auto upstream = laid_out(rows, out, layout()).requires_grad_();
    const auto our_grads = grad({*ours}, inputs, {upstream}, /*retain_graph=*/true, /*create_graph=*/true);
    const auto their_grads = grad({theirs}, inputs, {upstream}, /*retain_graph=*/true, /*create_graph=*/true);
    const auto without_graph = grad({*ours}, inputs, {upstream.detach()});
    at::Tensor our_sum, their_sum;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      RC_ASSERT(same_bits(our_grads[i], their_grads[i]));
      RC_ASSERT(same_bits(without_graph[i], their_grads[i].detach()));
      const auto factor = at::randn_like(their_grads[i]);
      our_sum = i == 0 ? (our_grads[i] * factor).sum() : our_sum + (our_grads[i] * factor).sum();
      their_sum = i == 0 ? (their_grads[i] * factor).sum() : their_sum + (their_grads[i] * factor).sum();
    }
    auto again = inputs;
    again.push_back(upstream);
    const auto our_second = grad({our_sum}, again, {}, std::nullopt, false, /*allow_unused=*/true);
    const auto their_second = grad({their_sum}, again, {}, std::nullopt, false, /*allow_unused=*/true);
    for (std::size_t i = 0; i < again.size(); ++i) RC_ASSERT(same_bits(our_second[i], their_second[i]));
  });
}

TEST(LinearTest, EveryRealDtypeHasTheBitsOfLibTorch) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto layer = layer_of(7, 33, 19, dtype);
    const auto ours = layer.of_one_node(), theirs = layer.of_libtorch();
    EXPECT_TRUE(same_bits(ours, theirs)) << dtype;
    const auto upstream = at::randn_like(theirs);
    const auto our_grads = grad({ours}, trained(layer), {upstream}), their_grads = grad({theirs}, trained(layer), {upstream});
    for (std::size_t i = 0; i < our_grads.size(); ++i) EXPECT_TRUE(same_bits(our_grads[i], their_grads[i])) << dtype << ", gradient " << i;
  }
}

// Buckets are filled in this order, and another would change the sums of all ranks.
TEST(LinearTest, GradientsAreReadyInTheOrderOfLibTorch) {
  const auto order_of = [](at::Tensor (Layer::*output)() const) {
    const auto trunk = layer_of(4, 5, 6);
    auto left = layer_of(4, 6, 3), right = layer_of(4, 6, 3);
    std::string order;
    for (const auto& [name, tensor] : {std::pair('T', trunk.weight), {'t', trunk.bias}, {'L', left.weight}, {'l', left.bias}, {'R', right.weight}, {'r', right.bias}}) {
      tensor.register_hook([&order, name = name](const at::Tensor&) { order += name; });
    }
    left.input = right.input = (trunk.*output)().relu();
    const auto of_left = (left.*output)(), of_right = (right.*output)();
    (of_left * of_right).sum().backward();
    return order;
  };
  EXPECT_EQ(order_of(&Layer::of_one_node), "rRlLtT");
  EXPECT_EQ(order_of(&Layer::of_libtorch), "rRlLtT");
}

TEST(LinearTest, OnlyWhatDerivativesNeedIsKept) {
  const auto holders = [](bool input_is_trained, bool weight_is_trained) {
    auto layer = layer_of(4, 5, 6);
    layer.input.requires_grad_(input_is_trained);
    layer.weight.requires_grad_(weight_is_trained);
    const auto output = layer.of_one_node();
    // Beside the layer and the node that takes a leaf's gradient.
    return std::pair<int, int>(layer.input.use_count() - 1 - input_is_trained, layer.weight.use_count() - 1 - weight_is_trained);
  };
  EXPECT_EQ(holders(true, true), std::pair(1, 1));
  EXPECT_EQ(holders(false, true), std::pair(1, 0));  // the weight is for the input's gradient
  EXPECT_EQ(holders(true, false), std::pair(0, 1));
}

TEST(LinearTest, WhatIsKeptGoesWithTheBackwardPass) {
  const auto layer = layer_of(4, 5, 6);
  const auto output = layer.of_one_node();
  output.sum().backward();
  EXPECT_EQ(layer.weight.use_count(), 2U);  // the layer, and the node that takes its gradient
  EXPECT_THAT(refusal([&] { output.sum().backward(); }), HasSubstr("backward through the graph a second time"));
}

TEST(LinearTest, AWeightThatChangedSinceIsRefusedAsByLibTorch) {
  const auto layer = layer_of(4, 5, 6);
  const auto output = layer.of_one_node();
  {
    const torch::NoGradGuard no_grad;
    layer.weight.add_(1);
  }
  EXPECT_THAT(refusal([&] { output.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

TEST(LinearTest, SizesThatDoNotFitAreRefusedInTheWordsOfLibTorch) {
  auto layer = layer_of(4, 5, 6);
  layer.input = at::randn({4, 7});
  const auto ours = refusal([&] { std::ignore = layer.of_one_node(); });
  EXPECT_THAT(ours, HasSubstr("shapes cannot be multiplied (4x7 and 5x6)"));
  EXPECT_EQ(ours, refusal([&] { std::ignore = layer.of_libtorch(); }));
}

TEST(LinearTest, WithoutGradientsThereIsNoNode) {
  const auto layer = layer_of(4, 5, 6);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(layer.of_one_node().requires_grad());
}

TEST(LinearTest, WhatMoreThanAutogradLooksAtIsLeftToLibTorch) {
  const auto layer = layer_of(4, 5, 6);
  const auto is_plain = [](const Layer& l) { return plain_linear(l.input, l.weight, l.bias).has_value(); };
  EXPECT_TRUE(is_plain(layer));
  EXPECT_FALSE(is_plain({layer.input, layer.weight, {}}));
  EXPECT_FALSE(is_plain({layer.input.unsqueeze(0), layer.weight, layer.bias}));
  EXPECT_FALSE(is_plain({layer.input[0], layer.weight, layer.bias}));
  EXPECT_FALSE(is_plain({at::empty({4, 5}, at::kMeta), at::empty({6, 5}, at::kMeta), at::empty({6}, at::kMeta)}));
  EXPECT_FALSE(is_plain(layer_of(4, 5, 6, at::kComplexFloat)));
  EXPECT_FALSE(is_plain({layer.input.detach().to_sparse(), layer.weight, layer.bias}));
  EXPECT_FALSE(is_plain({layer.input, layer.weight.detach().to_sparse_csr(), layer.bias}));
  EXPECT_FALSE(is_plain({layer.input, layer.weight, layer.bias.detach().to_sparse()}));
  EXPECT_FALSE(is_plain({at::ones({4, 5}, at::kLong), at::ones({6, 5}, at::kLong), at::ones({6}, at::kLong)}));
  {
    const c10::InferenceMode inference;
    EXPECT_FALSE(is_plain(layer));
  }
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  EXPECT_FALSE(is_plain({at::_make_dual(layer.input.detach(), at::ones({4, 5}), static_cast<std::int64_t>(level)), layer.weight, layer.bias}));
  torch::autograd::ForwardADLevel::release_idx(level);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(is_plain(layer));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(is_plain(layer));
}

}  // namespace
}  // namespace accel::testing
