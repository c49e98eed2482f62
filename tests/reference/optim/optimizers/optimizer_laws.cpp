// Properties of pairs of implementations: the fused kernels against the multi-tensor form, and Rprop's bounds
// against Python's masks.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>

#include "reference/optim/optimizers/optimizers.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

using accel::testing::odd_parameters;
using accel::testing::pick;

constexpr int kSteps = 8;
// Ten roundings of 2^-53 per step on values near 1, with a margin.
constexpr double kRounding = 1e-12;

double any_of(std::initializer_list<double> values) { return values.begin()[pick<std::size_t>(0, values.size())]; }

// Returns arguments of every kind within the range that the optimizer accepts.
// Random values for every option, by the reflection that the options offer.
template <typename Options>
Options any_options() {
  Options options;
  for_each_option(options, [](const std::string& name, auto& value) {
    using Option = std::remove_cvref_t<decltype(value)>;
    if constexpr (std::same_as<Option, bool>) {
      value = pick(0, 2) == 1;
    } else if constexpr (std::same_as<Option, NumberPair>) {
      value = {any_of({0, 0.5, 0.9}), any_of({0.3, 0.9, 0.999})};
    } else if (name == "eps") {
      value = any_of({1e-8, 1e-3});
    } else {
      value = any_of({0, 0.01, 0.3, 0.7});
    }
  });
  options.lr = any_of({0.003, 0.1});
  if constexpr (requires { options.nesterov; }) {
    if (options.nesterov) options.dampening = 0, options.momentum = 0.6;
  }
  return options;
}

// Performs steps on individual gradients; the second parameter has gradients from the third step on.
template <typename Options>
std::vector<at::Tensor> stepped(Options options, bool fused) {
  options.fused = fused;
  auto params = odd_parameters(at::kDouble);
  MultiTensorOptimizer<Options> optimizer(params, options);
  for (int step = 0; step < kSteps; ++step) {
    const auto generator = make_generator(step);
    for (std::size_t param = 0; param < params.size(); ++param) {
      const auto gradient = at::randn(params[param].sizes(), generator, at::kDouble);
      if (param != 1 || step >= 2) params[param].mutable_grad() = gradient;
    }
    optimizer.step();
  }
  return params;
}

template <typename Options>
class FusedLaws : public ::testing::Test {};
using FusedOptions = ::testing::Types<AdamOptions, AdamWOptions, SGDOptions, AdagradOptions>;
TYPED_TEST_SUITE(FusedLaws, FusedOptions, accel::testing::OptionsNames);

// Both forms must agree, as a state dict may switch from one to the other.
TYPED_TEST(FusedLaws, TheMultiTensorFormTakesTheSameSteps) {
  accel::testing::expect_property(30, [] {
    const auto options = any_options<TypeParam>();
    for_each_option(options, [](const std::string& name, const auto& value) {
      if constexpr (!std::same_as<std::remove_cvref_t<decltype(value)>, NumberPair>)
        RC_LOG() << name << " " << value << ", ";
      else
        RC_LOG() << name << " " << std::get<0>(value) << " " << std::get<1>(value) << ", ";
    });
    const auto fused = stepped(options, true), plain = stepped(options, false);
    for (std::size_t param = 0; param < fused.size(); ++param)
      RC_ASSERT(at::allclose(fused[param], plain[param], kRounding, kRounding));
  });
}

// One step of Python's formula, from the previous gradient and the step size that it left.
struct MaskedRprop {
  at::Tensor param, prev, size;

  void step(const at::Tensor& grad, const RpropOptions& options) {
    const auto [smaller, larger] = options.etas;
    const auto [least, most] = options.step_sizes;
    const auto downhill = options.maximize ? grad.neg() : grad;
    auto factor = downhill.mul(prev).sign();
    factor.copy_(at::where(factor.gt(0), larger, at::where(factor.lt(0), smaller, at::ones_like(factor))));
    size.mul_(factor).clamp_(least, most);
    prev.copy_(downhill.masked_fill(factor.eq(smaller), 0));
    param.addcmul_(prev.sign(), size, -1);
  }
};

// Returns values as integers, so that 0 and -0 differ. All NaNs are mapped to one.
at::Tensor bits_of(const at::Tensor& tensor) {
  const auto bits = tensor.itemsize() == 8 ? at::kLong : tensor.itemsize() == 4 ? at::kInt : at::kShort;
  return at::where(tensor.isnan(), at::full_like(tensor, 7), tensor).view(bits);
}

// Python computes with sign masks; our form uses clamps. Infinities, zeros and NaN are where such rewrites fail.
TEST(RpropLaws, StepsEqualPythonsMasksOnGradientsOfAnyKind) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  accel::testing::expect_property(100, [] {
    const auto dtype = std::array{at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}[pick(0, 4)];
    RpropOptions options{.lr = any_of({0.01, 0.7}), .etas = {any_of({0.1, 0.5, 0.9}), any_of({1.0001, 1.2, 7})}};
    options.step_sizes = {any_of({1e-6, 0.02}), any_of({0.03, 50})};
    options.maximize = pick(0, 2) == 1;
    const auto param = at::randn({37}, make_generator(pick(0, 1000)), dtype).requires_grad_();
    MaskedRprop masked{param.detach().clone(), at::zeros_like(param), at::full_like(param, options.lr)};
    MultiTensorOptimizer<RpropOptions> optimizer({param}, options);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<double> numbers(param.numel());
      for (auto& number : numbers)
        number = any_of({0.0, -0.0, 1.5, -1.5, 1e-3, -3e4, 1e-30, kInf, -kInf, std::nan("")});
      const auto grad = at::tensor(numbers, at::kDouble).to(dtype);
      param.mutable_grad() = grad.clone();
      optimizer.step();
      masked.step(grad, options);
      const auto state = optimizer.state_dict().at("state").at("0");
      RC_ASSERT(bits_of(param.detach()).equal(bits_of(masked.param)));
      RC_ASSERT(bits_of(state.at("prev").as<at::Tensor>()).equal(bits_of(masked.prev)));
      RC_ASSERT(bits_of(state.at("step_size").as<at::Tensor>()).equal(bits_of(masked.size)));
    }
  });
}

}  // namespace
}  // namespace accel::optim
