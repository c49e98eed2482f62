// Linear layers have the bits of at::linear, in this library's models as in torch::nn::Linear, whose forward this
// library replaces for float8. Losses that contain derivatives of the net (physics-informed nets, gradient penalties)
// sum a weight's gradient from many parts, so they notice another order of those sums.
#include "reference/modules/linear.hpp"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using torch::autograd::grad;

// The layer as Python computes it, without a module's forward.
struct PlainLinearImpl : torch::nn::LinearImpl {
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight, bias); }
};

struct NetShape {
  std::vector<int> widths = {};   // of the input and of each layer
  std::vector<bool> biases = {};  // per layer
  bool repeats = false;           // the layers between the first and the last are one layer
};

struct LossShape {
  int calls = 1;
  int rows = 1;
  int derivatives = 0;        // 0: outputs only; 1 or 2: also derivatives of this order with respect to the input
  bool adds_batches = false;  // one more dimension of the input
  bool trains_input = false;  // also the derivative with respect to the inputs
};

template <typename Layer>
struct Net {
  explicit Net(const NetShape& shape) {
    for (std::size_t i = 0; i + 1 < shape.widths.size(); ++i) {
      const bool is_inner = i > 0 && i + 2 < shape.widths.size();
      if (is_inner && shape.repeats && i > 1) {
        layers.push_back(layers.back());
        continue;
      }
      layers.push_back(std::make_shared<Layer>(
          torch::nn::LinearOptions(shape.widths[i], shape.widths[i + 1]).bias(shape.biases[i])));
    }
  }
  at::Tensor operator()(at::Tensor x) const {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      x = layers[i]->forward(x);
      if (i + 1 < layers.size()) x = at::tanh(x);
    }
    return x;
  }
  std::vector<std::shared_ptr<Layer>> layers;
};

at::Tensor loss_of(const LossShape& shape, const std::vector<at::Tensor>& inputs, const auto& net) {
  auto loss = at::zeros({});
  for (const auto& input : inputs) {
    auto value = net(input);
    loss = loss + value.square().mean();
    for (int order = 0; order < shape.derivatives; ++order) {
      if (!value.requires_grad()) break;  // of a net of one layer, whose derivative is constant
      value =
          grad({value.sum()}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true, /*allow_unused=*/true).front();
      if (!value.defined()) break;
      loss = loss + (value.square().sum(-1) - 1).square().mean();
    }
  }
  return loss;
}

// The loss and all gradients.
template <typename Layer>
std::vector<at::Tensor> results_of(const NetShape& net_shape, const LossShape& shape, int seed) {
  torch::manual_seed(seed);
  const Net<Layer> net(net_shape);
  std::vector<at::Tensor> inputs, results;
  for (int call = 0; call < shape.calls; ++call) {
    auto input = shape.adds_batches ? at::randn({2, shape.rows, net_shape.widths.front()})
                                    : at::randn({shape.rows, net_shape.widths.front()});
    input.requires_grad_(shape.derivatives > 0 || shape.trains_input);
    // In half of the cases the input comes from an earlier operator.
    inputs.push_back(seed % 2 == 0 ? input.view_as(input) : input);
    if (input.requires_grad()) results.push_back(input);
  }
  const auto loss = loss_of(shape, inputs, net);
  loss.backward();
  for (auto& result : results) result = result.grad();
  results.push_back(loss.detach());
  for (const auto& layer : net.layers) {
    for (const auto& parameter : layer->parameters()) results.push_back(parameter.grad());
  }
  return results;
}

bool have_same_bits(const std::vector<at::Tensor>& left, const std::vector<at::Tensor>& right) {
  const auto bytes = [](const at::Tensor& tensor) { return tensor.reshape({-1}).contiguous().view(at::kByte); };
  return std::ranges::equal(left, right, [&](const at::Tensor& a, const at::Tensor& b) {
    if (!a.defined() || !b.defined()) return a.defined() == b.defined();
    return a.sizes() == b.sizes() && bytes(a).equal(bytes(b));
  });
}

// 300 nets and losses.
TEST(LinearLaws, LossesWithDerivativesHaveTheBitsOfAtLinear) {
  expect_property(300, [] {
    NetShape net{.widths = {pick(1, 6)}, .repeats = one_in(2)};
    const auto width = pick(1, 41);
    for (int layer = pick(1, 5); layer-- > 0;) {
      net.widths.push_back(layer == 0 ? pick(1, 6) : width);
      net.biases.push_back(!one_in(4));
    }
    const LossShape loss{.calls = pick(1, 4),
                         .rows = pick(1, 20),
                         .derivatives = pick(0, 3),
                         .adds_batches = one_in(4),
                         .trains_input = one_in(2)};
    const auto seed = pick(0, 1 << 20);
    RC_TAG(fmt::format("{} calls, derivatives of order {}", loss.calls, loss.derivatives));
    const auto expected = results_of<PlainLinearImpl>(net, loss, seed);
    RC_ASSERT(have_same_bits(results_of<torch::nn::LinearImpl>(net, loss, seed), expected));
    RC_ASSERT(have_same_bits(results_of<models::LinearImpl>(net, loss, seed), expected));
  });
}

// LibTorch's own forward adds the bias of such an input separately. A counterexample of the law above.
TEST(LinearTest, InputsOfThreeDimensionsHaveTheBitsOfAtLinear) {
  const NetShape net{.widths = {1, 2, 2, 1}, .biases = {true, true, true}};
  const LossShape loss{.rows = 2, .adds_batches = true};
  for (const int seed : {7, 17, 43, 507013}) {
    const auto expected = results_of<PlainLinearImpl>(net, loss, seed);
    EXPECT_TRUE(have_same_bits(results_of<torch::nn::LinearImpl>(net, loss, seed), expected)) << seed;
  }
}

// Half-precision types use other kernels than float.
TEST(LinearTest, EveryRealDtypeHasTheBitsOfAtLinear) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    torch::manual_seed(1);
    PlainLinearImpl plain(torch::nn::LinearOptions(33, 19));
    torch::nn::LinearImpl layer(torch::nn::LinearOptions(33, 19));
    for (auto* module : {static_cast<torch::nn::LinearImpl*>(&plain), &layer}) module->to(dtype);
    layer.weight.set_data(plain.weight.detach().clone());
    layer.bias.set_data(plain.bias.detach().clone());
    const auto input = at::randn({7, 33}, dtype);
    const auto ours = layer.forward(input), theirs = plain.forward(input);
    ours.sum().backward();
    theirs.sum().backward();
    EXPECT_TRUE(have_same_bits({ours.detach(), layer.weight.grad(), layer.bias.grad()},
                               {theirs.detach(), plain.weight.grad(), plain.bias.grad()}))
        << dtype;
  }
}

}  // namespace
}  // namespace accel::testing
