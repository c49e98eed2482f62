// Our linear layer is a single autograd node, which saves time per step. It must give the bits of LibTorch's
// composition in results, gradients and second derivatives, and prepare gradients in the same order.
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

// Compares bits: a NaN equals itself, and 0 differs from -0.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined() || !b.defined()) return a.defined() == b.defined();
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().clone(at::MemoryFormat::Contiguous).view(at::kByte);
  };
  return a.sizes() == b.sizes() && a.strides() == b.strides() && a.scalar_type() == b.scalar_type() &&
         bytes(a).equal(bytes(b));
}

// A layer's tensors, and its output by LibTorch and by the single node.
struct Layer {
  at::Tensor input, weight, bias;
  [[nodiscard]] at::Tensor of_libtorch() const { return at::linear(input, weight, bias); }
  [[nodiscard]] at::Tensor of_one_node() const { return fused_linear(input, weight, bias).value(); }
};

// Returns a tensor that is not a leaf, like the output of a previous layer.
at::Tensor result_of(const at::Tensor& tensor) { return tensor.view_as(tensor); }

Layer layer_of(std::int64_t rows, std::int64_t in, std::int64_t out, at::ScalarType dtype = at::kFloat) {
  const auto trained = [&](at::IntArrayRef sizes) { return at::randn(sizes, dtype).requires_grad_(); };
  return {result_of(trained({rows, in})), trained({out, in}), trained({out})};
}

// Returns a matrix of these sizes that is contiguous by rows, by columns, or has gaps.
at::Tensor laid_out(std::int64_t rows, std::int64_t columns, int layout) {
  if (layout == 0) return at::randn({columns, rows}).t();
  if (layout == 1) return at::randn({rows, columns + 3}).narrow(1, 1, columns);
  if (layout == 2) return at::randn({1, columns}).expand({rows, columns});
  return at::randn({rows, columns});
}

// The tensors that need gradients; any subset has to work.
std::vector<at::Tensor> trained(const Layer& layer) {
  std::vector<at::Tensor> tensors;
  for (const auto& tensor : {layer.input, layer.weight, layer.bias}) {
    if (tensor.requires_grad()) tensors.push_back(tensor);
  }
  return tensors;
}

// The message of LibTorch's error; "" if there is none.
std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

// 400 cases over sizes, layouts and required gradients. Sizes around 0 and up to 90 use different kernels of the
// BLAS library.
TEST(LinearLaws, ResultsAndBothDerivativesHaveTheBitsOfLibTorch) {
  expect_property(400, [] {
    torch::manual_seed(*rc::gen::arbitrary<int>());
    const auto size = [] { return pick(0, 4) == 0 ? pick(0, 3) : pick(0, 90); };
    const auto rows = size(), in = size(), out = size();
    const auto layout = [] { return pick(0, 8); };
    Layer layer{laid_out(rows, in, layout()), laid_out(out, in, layout()),
                pick(0, 4) > 0 ? at::randn({out}) : at::randn({1})};
    for (auto* tensor : {&layer.input, &layer.weight, &layer.bias}) tensor->requires_grad_(pick(0, 4) > 0);
    layer.input = result_of(layer.input);
    const auto ours = fused_linear(layer.input, layer.weight, layer.bias);
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

// Half-precision types use other kernels than float.
TEST(LinearTest, EveryRealDtypeHasTheBitsOfLibTorch) {
  torch::manual_seed(1);
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    const auto layer = layer_of(7, 33, 19, dtype);
    const auto ours = layer.of_one_node(), theirs = layer.of_libtorch();
    EXPECT_TRUE(same_bits(ours, theirs)) << dtype;
    const auto upstream = at::randn_like(theirs);
    const auto our_grads = grad({ours}, trained(layer), {upstream}),
               their_grads = grad({theirs}, trained(layer), {upstream});
    for (std::size_t i = 0; i < our_grads.size(); ++i)
      EXPECT_TRUE(same_bits(our_grads[i], their_grads[i])) << dtype << ", gradient " << i;
  }
}

// DDP fills buckets in this order, and another order would change the sums of all ranks.
TEST(LinearTest, GradientsAreReadyInTheOrderOfLibTorch) {
  const auto order_of = [](at::Tensor (Layer::*output)() const) {
    const auto trunk = layer_of(4, 5, 6);
    auto left = layer_of(4, 6, 3), right = layer_of(4, 6, 3);
    std::string order;
    for (const auto& [name, tensor] : {std::pair('T', trunk.weight),
                                       {'t', trunk.bias},
                                       {'L', left.weight},
                                       {'l', left.bias},
                                       {'R', right.weight},
                                       {'r', right.bias}}) {
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

// Keeping an input that is not needed would raise the memory of every layer.
TEST(LinearTest, OnlyTensorsThatDerivativesNeedAreKept) {
  const auto keeps = [](bool input_is_trained, bool weight_is_trained) {
    auto layer = layer_of(4, 5, 6);
    if (!input_is_trained) layer.input = layer.input.detach();
    layer.weight.requires_grad_(weight_is_trained);
    const auto input_before = layer.input.use_count(), weight_before = layer.weight.storage().use_count();
    const auto output = layer.of_one_node();
    return std::pair(layer.input.use_count() > input_before, layer.weight.storage().use_count() > weight_before);
  };
  EXPECT_EQ(keeps(true, true), std::pair(true, true));
  EXPECT_EQ(keeps(false, true), std::pair(true, false));  // the weight is only needed for the input's gradient
  EXPECT_EQ(keeps(true, false), std::pair(false, true));
}

// Sharded training frees and replaces the data of weights between forward and backward.
TEST(LinearTest, AWeightKeepsItsDataForBackwardDespiteSetData) {
  for (const bool is_trained : {true, false}) {
    const auto layer = layer_of(4, 5, 6);
    layer.weight.requires_grad_(is_trained);
    const auto ours = layer.of_one_node(), theirs = layer.of_libtorch();
    layer.weight.set_data(at::zeros({6, 5}));
    const auto upstream = at::randn({4, 6});
    EXPECT_TRUE(
        same_bits(grad({ours}, {layer.input}, {upstream}).front(), grad({theirs}, {layer.input}, {upstream}).front()));
  }
}

// Forward-mode differentiation of the backward pass, as for Hessian products.
TEST(LinearTest, TangentsOfTheUpstreamGradientArePropagated) {
  const auto layer = layer_of(4, 5, 6);
  const auto level = torch::autograd::ForwardADLevel::get_next_idx();
  const auto upstream = at::_make_dual(at::randn({4, 6}), at::randn({4, 6}), static_cast<std::int64_t>(level));
  const auto ours = grad({layer.of_one_node()}, trained(layer), {upstream}),
             theirs = grad({layer.of_libtorch()}, trained(layer), {upstream});
  for (std::size_t i = 0; i < ours.size(); ++i) {
    ASSERT_TRUE(theirs[i]._fw_grad(level).defined());
    EXPECT_TRUE(same_bits(ours[i]._fw_grad(level), theirs[i]._fw_grad(level))) << i;
  }
  torch::autograd::ForwardADLevel::release_idx(level);
}

// Otherwise memory would grow with each step. A second backward pass is an error, as in LibTorch.
TEST(LinearTest, KeptTensorsAreFreedByTheBackwardPass) {
  const auto layer = layer_of(4, 5, 6);
  const auto output = layer.of_one_node();
  output.sum().backward();
  EXPECT_EQ(layer.weight.storage().use_count(), 1U);
  EXPECT_THAT(refusal([&] {
                std::ignore = grad({output}, {layer.bias}, {at::ones({4, 6})});
              }),
              HasSubstr("backward through the graph a second time"));
  EXPECT_THAT(refusal([&] { output.sum().backward(); }), HasSubstr("backward through the graph a second time"));
}

// The gradient would be computed with the wrong values, without notice.
TEST(LinearTest, AWeightChangedInPlaceIsRejectedAsByLibTorch) {
  const auto layer = layer_of(4, 5, 6);
  const auto output = layer.of_one_node();
  {
    const torch::NoGradGuard no_grad;
    layer.weight.add_(1);
  }
  EXPECT_THAT(refusal([&] { output.sum().backward(); }), HasSubstr("modified by an inplace operation"));
}

// Users search for LibTorch's message.
TEST(LinearTest, SizesThatDoNotFitGiveLibTorchsMessage) {
  auto layer = layer_of(4, 5, 6);
  layer.input = at::randn({4, 7});
  const auto ours = refusal([&] { std::ignore = layer.of_one_node(); });
  EXPECT_THAT(ours, HasSubstr("shapes cannot be multiplied (4x7 and 5x6)"));
  EXPECT_EQ(ours, refusal([&] { std::ignore = layer.of_libtorch(); }));
}

// A node without gradients would keep the input alive during inference.
TEST(LinearTest, WithoutGradientsThereIsNoNode) {
  const auto layer = layer_of(4, 5, 6);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(layer.of_one_node().requires_grad());
}

// Tracing, functorch and other dispatch modes need to see LibTorch's own operators.
TEST(LinearTest, UnusualInputsAreLeftToLibTorch) {
  const auto layer = layer_of(4, 5, 6);
  const auto is_plain = [](const Layer& l) { return fused_linear(l.input, l.weight, l.bias).has_value(); };
  EXPECT_TRUE(is_plain(layer));
  EXPECT_FALSE(is_plain({layer.input, layer.weight, {}}));
  EXPECT_FALSE(is_plain({at::randn({4, 5}).requires_grad_(), layer.weight, layer.bias}));
  EXPECT_TRUE(is_plain({at::randn({4, 5}), layer.weight, layer.bias}));
  EXPECT_FALSE(is_plain(layer_of(1, 1, 2)));  // also contiguous by columns
  EXPECT_FALSE(is_plain(layer_of(2, 1, 1)));
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
  EXPECT_FALSE(is_plain({at::_make_dual(layer.input.detach(), at::ones({4, 5}), static_cast<std::int64_t>(level)),
                         layer.weight, layer.bias}));
  torch::autograd::ForwardADLevel::release_idx(level);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  EXPECT_FALSE(is_plain(layer));
  at::autocast::set_autocast_enabled(at::kCPU, false);
  EXPECT_TRUE(is_plain(layer));
}

}  // namespace
}  // namespace accel::testing
