// The fused kernels beside the multi-tensor form: one formula in two places.
#include <gtest/gtest.h>

#include "reference/optim/optimizers.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/property.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

using accel::testing::odd_parameters;
using accel::testing::pick;

constexpr int kSteps = 8;
// Ten roundings of 2^-53 a step, on values near 1.
constexpr double kRounding = 1e-12;

double any_of(std::initializer_list<double> values) { return values.begin()[pick<std::size_t>(0, values.size())]; }

// Arguments of every kind, within what the optimizer takes.
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

// Steps on gradients of their own, the second parameter's from the third step on.
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

TYPED_TEST(FusedLaws, TheMultiTensorFormTakesTheSameSteps) {
  accel::testing::expect_property(30, [] {
    const auto options = any_options<TypeParam>();
    for_each_option(options, [](const std::string& name, const auto& value) {
      if constexpr (!std::same_as<std::remove_cvref_t<decltype(value)>, NumberPair>) RC_LOG() << name << " " << value << ", ";
      else RC_LOG() << name << " " << std::get<0>(value) << " " << std::get<1>(value) << ", ";
    });
    const auto fused = stepped(options, true), plain = stepped(options, false);
    for (std::size_t param = 0; param < fused.size(); ++param) RC_ASSERT(at::allclose(fused[param], plain[param], kRounding, kRounding));
  });
}

}  // namespace
}  // namespace accel::optim
