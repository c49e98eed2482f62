// Tests of recomputed activations: a part's forward runs again during backward, which saves memory but must not
// change a single bit of the gradients. Dropout and autocast are included, since both depend on state outside of
// the part.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/function.h>
#include <torch/nn/modules/activation.h>

#include "reference/modules/call.hpp"
#include "reference/precision/autocast.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

// A part with dropout that counts its forwards.
struct PartImpl : torch::nn::Module {
  PartImpl()
      : linear(register_module("linear", torch::nn::Linear(6, 6))),
        dropout(register_module("dropout", torch::nn::Dropout(0.5))) {}
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x, const at::Tensor& y) {
    ++num_forwards;
    auto out = dropout(torch::relu(linear(x))) + y;
    return {out, out.sum()};
  }
  torch::nn::Linear linear;
  torch::nn::Dropout dropout;
  int num_forwards = 0;
};
TORCH_MODULE(Part);

// Switches recomputation on and does nothing else.
class Recomputing : public ModuleHooks {
 public:
  void before_forward() override {}
  void after_forward(std::vector<at::Tensor>& /*outputs*/) override {}
  [[nodiscard]] bool recomputes() const override { return true; }
};

// The result of one training step.
struct Gradients {
  at::Tensor loss, of_x, of_weight;
  int num_forwards;
};

// One step, with or without recomputing, with an input that needs a gradient or not, and with casts or not.
Gradients gradients(bool recomputes, bool input_needs_one, bool casts) {
  torch::manual_seed(3);
  Part part;
  std::optional<ScopedModuleHooks> surrounded;
  if (recomputes) surrounded.emplace(*part, std::make_shared<Recomputing>());
  auto x = torch::randn({4, 6}).requires_grad_(input_needs_one);
  at::Tensor loss;
  {
    std::optional<Autocast> cast;
    if (casts) cast.emplace(Autocast::Options{.device = c10::kCPU, .dtype = at::kBFloat16});
    const auto [out, sum] = call(part, x, torch::ones({6}));
    loss = out.square().sum() + sum;
  }
  torch::rand({5});  // the generator advances between forward and backward
  loss.backward();
  return {loss.detach(), x.grad(), part->linear->weight.grad(), part->num_forwards};
}

// The second forward has to draw the same dropout mask and to cast in the same way.
TEST(RecomputationTest, GradientsEqualThoseOfKeptActivations) {
  for (const bool input_needs_one : {false, true}) {
    for (const bool casts : {false, true}) {
      const auto kept = gradients(false, input_needs_one, casts), again = gradients(true, input_needs_one, casts);
      EXPECT_EQ(kept.num_forwards, 1);
      EXPECT_EQ(again.num_forwards, 2);
      EXPECT_TRUE(torch::equal(kept.loss, again.loss));
      EXPECT_TRUE(torch::equal(kept.of_weight, again.of_weight));
      if (input_needs_one) {
        EXPECT_TRUE(torch::equal(kept.of_x, again.of_x));
      }
    }
  }
}

// Recomputing must also leave the generator in the state in which it found it.
TEST(RecomputationTest, LaterDrawsAreNotAffected) {
  std::vector<at::Tensor> drawn;
  for (const bool recomputes : {false, true}) {
    gradients(recomputes, true, false);
    drawn.push_back(torch::rand({3}));
  }
  EXPECT_TRUE(torch::equal(drawn[0], drawn[1]));
}

// LibTorch has no hooks on modules. For the time of the scope, the parts of a Sequential are therefore replaced by
// others with the same parameter names; afterwards the original parts must be back.
TEST(SurroundedPartsTest, PartsOfASequentialAreSurroundedDuringTheScope) {
  torch::nn::Sequential net(torch::nn::Linear(6, 6), torch::nn::ReLU());
  const auto linear = net->ptr(0);
  {
    const ScopedModuleHooks calls(*linear, std::make_shared<Recomputing>());
    const ScopedSequentialHooks parts(net.ptr());
    EXPECT_NE(net->ptr(0), linear);
    EXPECT_EQ(net->named_parameters().keys(), (std::vector<std::string>{"0.weight", "0.bias"}));
    EXPECT_THAT(net->forward(torch::ones({2, 6})).grad_fn()->next_edge(0).function->name(), "CheckpointBackward");
  }
  EXPECT_EQ(net->ptr(0), linear);
}

}  // namespace
}  // namespace accel::testing
