// Properties that every optimizer has. Their values are compared in properties/oracle/recorded_optimizers_test.cpp.
#include "reference/optim/optimizers/optimizers.hpp"

#include <gmock/gmock.h>

#include <limits>

#include "reference/core/errors.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/outermost_operators.hpp"
#include "tests/support/torch.hpp"

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

namespace accel::optim {
namespace {

using accel::testing::equal_bits;
using accel::testing::in_layout_of;
using accel::testing::kForMatricesOnly;
using accel::testing::kForSparseGradients;
using accel::testing::odd_parameters;
using accel::testing::OutermostOperators;
using accel::testing::run_steps;
using accel::testing::with_all_state;

// How many operators one step calls. With many parameters the number must not grow.
template <typename Options>
int operators_of_a_step(int num_params, const Options& options) {
  std::vector<at::Tensor> params;
  const auto shape = kForMatricesOnly<Options> ? std::vector<std::int64_t>{3, 2} : std::vector<std::int64_t>{3};
  for (int param = 0; param < num_params; ++param) params.push_back(at::ones(shape).requires_grad_());
  MultiTensorOptimizer<Options> optimizer(params, options);
  run_steps(optimizer, params, {.from = 0, .to = 2});
  const OutermostOperators operators;
  optimizer.step();
  return static_cast<int>(OutermostOperators::names().size());
}

template <typename Options>
class EveryOptimizerTest : public ::testing::Test {};
TYPED_TEST_SUITE(EveryOptimizerTest, accel::testing::AllOptions, accel::testing::OptionsNames);

// One operator per parameter would launch thousands of kernels per step on a GPU. Python's steps of three optimizers
// have no other form.
TYPED_TEST(EveryOptimizerTest, TheNumberOfOperatorsIsIndependentOfTheNumberOfParameters) {
  const bool steps_single_tensors =
      kForMatricesOnly<TypeParam> || kForSparseGradients<TypeParam> || std::same_as<TypeParam, AdafactorOptions>;
  const auto options = with_all_state<TypeParam>();
  const auto few = operators_of_a_step(2, options), many = operators_of_a_step(50, options);
  EXPECT_GT(few, 0);
  EXPECT_EQ(few == many, !steps_single_tensors);
  EXPECT_LE(few, steps_single_tensors ? 100 : 25);
}

// Compared with two separate optimizers.
TYPED_TEST(EveryOptimizerTest, GroupsUseTheirOwnRates) {
  const auto together = odd_parameters<TypeParam>(), apart = odd_parameters<TypeParam>();
  auto slow = with_all_state<TypeParam>(), fast = slow;
  fast.lr = 0.2;
  MultiTensorOptimizer<TypeParam> both({ParamGroup<TypeParam>{{together[0]}, {}}, {{together[1], together[2]}, fast}},
                                       slow);
  MultiTensorOptimizer<TypeParam> first({apart[0]}, slow), rest({apart[1], apart[2]}, fast);
  run_steps(both, together, {.from = 0, .to = 4});
  for (int step = 0; step < 4; ++step) {
    const auto generator = make_generator(1000 + step);
    for (const auto& param : apart) param.mutable_grad() = in_layout_of<TypeParam>(at::randn(param.sizes(), generator));
    first.step();
    rest.step();
  }
  EXPECT_TRUE(equal_bits(together, apart));
}

// Schedules set it in this way.
TYPED_TEST(EveryOptimizerTest, ARateSetBetweenStepsIsUsed) {
  const auto kept = odd_parameters<TypeParam>(), changed = odd_parameters<TypeParam>();
  MultiTensorOptimizer<TypeParam> keeps(kept), changes(changed);
  run_steps(keeps, kept, {.from = 0, .to = 3});
  run_steps(changes, changed, {.from = 0, .to = 3});
  EXPECT_TRUE(equal_bits(kept, changed));
  changes.param_groups()[0].options().set_lr(0.7);
  EXPECT_EQ(changes.options().lr, 0.7);
  EXPECT_EQ(changes.param_groups()[0].options().get_lr(), 0.7);
  run_steps(keeps, kept, {.from = 3, .to = 6});
  run_steps(changes, changed, {.from = 3, .to = 6});
  // Rprop uses its rate in the first step only.
  EXPECT_EQ(equal_bits(kept, changed), (std::same_as<TypeParam, RpropOptions>));
}

TYPED_TEST(EveryOptimizerTest, AParameterWithoutAGradientIsUnchanged) {
  const auto params = odd_parameters<TypeParam>();
  MultiTensorOptimizer<TypeParam> optimizer(params, with_all_state<TypeParam>());
  params[0].mutable_grad() = in_layout_of<TypeParam>(at::ones_like(params[0]));
  optimizer.step();
  optimizer.step();
  EXPECT_FALSE(params[0].equal(odd_parameters<TypeParam>()[0]));
  EXPECT_TRUE(params[1].equal(odd_parameters<TypeParam>()[1]));
}

TYPED_TEST(EveryOptimizerTest, AFirstGradientMayArriveLate) {
  // Alone or next to others that have made steps before, the parameter moves as in a first step.
  const auto alone = odd_parameters<TypeParam>(), beside = odd_parameters<TypeParam>();
  MultiTensorOptimizer<TypeParam> single({alone[2]}, with_all_state<TypeParam>()),
      all(beside, with_all_state<TypeParam>());
  beside[0].mutable_grad() = in_layout_of<TypeParam>(at::ones_like(beside[0]));
  all.step();
  for (const auto& param : {alone[2], beside[2]}) param.mutable_grad() = in_layout_of<TypeParam>(at::ones_like(param));
  for (int step = 0; step < 2; ++step) {
    single.step();
    all.step();
  }
  EXPECT_TRUE(alone[2].equal(beside[2]));
}

// Fused kernels handle lists of one dtype, so mixed groups must be split.
TYPED_TEST(EveryOptimizerTest, ParametersOfSeveralDtypesStepTogether) {
  const auto narrow = odd_parameters<TypeParam>(at::kFloat), wide = odd_parameters<TypeParam>(at::kDouble);
  MultiTensorOptimizer<TypeParam> mixed({narrow[2], wide[2]}), plain({odd_parameters<TypeParam>()[2]});
  for (const auto& param : {narrow[2], wide[2]})
    param.mutable_grad() = in_layout_of<TypeParam>(at::full_like(param, 0.25));
  mixed.step();
  EXPECT_FALSE(narrow[2].equal(odd_parameters<TypeParam>(at::kFloat)[2]));
  EXPECT_FALSE(wide[2].equal(odd_parameters<TypeParam>(at::kDouble)[2]));
}

// The first step must be as long as when minimising, in the opposite direction.
TYPED_TEST(EveryOptimizerTest, MaximizeStepsTheOtherWay) {
  const auto down = odd_parameters<TypeParam>(at::kDouble), up = odd_parameters<TypeParam>(at::kDouble);
  auto options = with_all_state<TypeParam>();
  if constexpr (!requires { options.maximize; }) GTEST_SKIP() << "always minimizes, as in Python";
  // Decay goes towards 0 in both cases.
  if constexpr (requires { options.weight_decay; }) options.weight_decay = 0;
  if constexpr (requires { options.lambd; }) options.lambd = 0;
  MultiTensorOptimizer<TypeParam> minimizes(down, options);
  if constexpr (requires { options.maximize; }) options.maximize = true;
  MultiTensorOptimizer<TypeParam> maximizes(up, options);
  run_steps(minimizes, down, {.from = 0, .to = 1});
  run_steps(maximizes, up, {.from = 0, .to = 1});
  const auto start = odd_parameters<TypeParam>(at::kDouble);
  for (std::size_t param = 0; param < start.size(); ++param) {
    EXPECT_TRUE(at::allclose(down[param] - start[param], start[param] - up[param], /*rtol=*/1e-12,
                             /*atol=*/1e-15));  // one rounding in each
    EXPECT_GT((down[param] - start[param]).abs().max().template item<double>(), 1e-6) << "did not move";
  }
}

TYPED_TEST(EveryOptimizerTest, AClosuresLossIsReturnedAndItsGradientsAreUsed) {
  const auto weight = torch::full({1, 1}, 3.0).requires_grad_();
  MultiTensorOptimizer<TypeParam> optimizer({weight});
  const c10::NoGradGuard no_grad;
  const auto loss = optimizer.step([&] {
    auto value = (weight * weight).sum();
    value.backward();
    weight.mutable_grad() = in_layout_of<TypeParam>(weight.grad());
    return value;
  });
  EXPECT_EQ(loss.template item<float>(), 9);
  EXPECT_LT(weight.template item<float>(), 3);
}

TYPED_TEST(EveryOptimizerTest, AGradientOfTheOtherLayoutIsAnArgumentErrorWithoutAnUpdate) {
  const auto weight = torch::zeros({4, 2}).requires_grad_(), other = torch::zeros({2, 1}).requires_grad_();
  MultiTensorOptimizer<TypeParam> optimizer({other, weight});
  other.mutable_grad() = in_layout_of<TypeParam>(torch::ones({2, 1}));
  weight.mutable_grad() = kForSparseGradients<TypeParam> ? torch::ones({4, 2}) : torch::ones({4, 2}).to_sparse();
  const auto* problem = kForSparseGradients<TypeParam> ? "[4, 2] is dense" : "[4, 2] is sparse";
  EXPECT_THAT(accel::testing::error_of<ArgumentError>([&] { optimizer.step(); }),
              AllOf(HasSubstr(TypeParam::kName), HasSubstr(problem)));
  EXPECT_TRUE(other.equal(torch::zeros({2, 1})));
}

TYPED_TEST(EveryOptimizerTest, ANegativeRateIsAnArgumentError) {
  TypeParam options;
  options.lr = -1;
  const auto make = [&] { MultiTensorOptimizer<TypeParam> optimizer(odd_parameters<TypeParam>(), options); };
  EXPECT_THAT(accel::testing::error_of<ArgumentError>(make),
              ContainsRegex("lr: expected a number (of 0 or more|above 0), got -1"));
}

// Exactly what torch.optim rejects with ValueError: dampening, and ASGD's own numbers, may be anything.
TYPED_TEST(EveryOptimizerTest, OptionsAreCheckedLikePythons) {
  constexpr bool kIsAsgd = std::same_as<TypeParam, ASGDOptions>;
  constexpr bool kIsMuon = std::same_as<TypeParam, MuonOptions>;
  TypeParam options;
  const auto error = [&] {
    return accel::testing::error_of<ArgumentError>(
        [&] { MultiTensorOptimizer<TypeParam> optimizer(odd_parameters<TypeParam>(), options); });
  };
  for_each_option(options, [&](const std::string& name, auto& value) {
    using Option = std::remove_cvref_t<decltype(value)>;
    const auto given = value;
    if constexpr (std::same_as<Option, double>) {
      const bool may_be_negative = name == "dampening" || name == "beta2_decay" || (kIsMuon && name == "eps") ||
                                   (kIsAsgd && (name == "lambd" || name == "alpha" || name == "t0"));
      const bool may_be_zero = name != "d" && !(kForSparseGradients<TypeParam> && (name == "lr" || name == "eps"));
      value = 0;
      EXPECT_EQ(error() == "", may_be_zero) << name << " 0";
      value = -0.5;
      EXPECT_THAT(error(), may_be_negative ? ::testing::Matcher<std::string>(::testing::IsEmpty())
                                           : HasSubstr(name + ": expected a number"))
          << name;
    }
    if constexpr (std::same_as<Option, NumberPair>) {
      if (name != "betas") return;
      value = {0.0, 0.0};
      EXPECT_EQ(error(), "");
      for (const NumberPair& wrong : {NumberPair{1.0, 0.9}, {0.9, 1.0}, {-0.1, 0.9}, {0.9, -0.1}}) {
        value = wrong;
        EXPECT_THAT(error(), HasSubstr("betas: expected two numbers in [0, 1)"))
            << std::get<0>(wrong) << ", " << std::get<1>(wrong);
      }
    }
    value = given;
  });
}

// A state in another memory format would be addressed wrongly by kernels that walk memory.
TYPED_TEST(EveryOptimizerTest, StateHasTheMemoryFormatOfItsParameter) {
  const auto image = at::ones({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast);
  const auto param = (kForMatricesOnly<TypeParam> ? at::ones({4, 3}).t() : image).requires_grad_();
  MultiTensorOptimizer<TypeParam> optimizer({param}, with_all_state<TypeParam>());
  param.mutable_grad() = in_layout_of<TypeParam>(at::full_like(param, 0.25));
  optimizer.step();
  const auto state = optimizer.state_dict().at("state");
  const auto& entries = state.at("0").template as<Value::Dict>();
  EXPECT_GT(entries.size(), 0U);
  for (const auto& [name, value] : entries) {
    if (!value.template is<at::Tensor>()) continue;  // SparseAdam's step
    const auto& tensor = value.template as<at::Tensor>();
    const bool is_factor = name == "row_var" || name == "col_var";
    if (tensor.dim() > 0 && !is_factor) {
      EXPECT_EQ(tensor.strides(), param.strides()) << name;
    }
  }
}

// Step counts have the default dtype, unless a kernel needs another one.
TYPED_TEST(EveryOptimizerTest, StepsAreCountedInAnyDefaultDtype) {
  const auto usual = at::get_default_dtype();
  for (const auto dtype : {at::kFloat, at::kDouble}) {
    at::set_default_dtype(at::scalarTypeToTypeMeta(dtype));
    const auto params = odd_parameters<TypeParam>();
    auto options = with_all_state<TypeParam>();
    if constexpr (requires { options.fused; }) options.fused = false;
    MultiTensorOptimizer<TypeParam> optimizer(params, options);
    run_steps(optimizer, params, {.from = 0, .to = 3});
    at::set_default_dtype(usual);
    const auto state = optimizer.state_dict().at("state");
    if (!state.at("0").contains("step") || kForSparseGradients<TypeParam>) continue;
    const auto step = state.at("0").at("step").template as<at::Tensor>();
    EXPECT_EQ(step.template item<double>(), 3) << dtype;
    EXPECT_EQ(step.scalar_type(), dtype);
  }
}

TYPED_TEST(EveryOptimizerTest, AParameterInTwoGroupsIsAnArgumentError) {
  const auto params = odd_parameters<TypeParam>();
  MultiTensorOptimizer<TypeParam> optimizer(params);
  EXPECT_THROW(optimizer.add_param_group({params[1]}, {}), ArgumentError);
}

TEST(OptimizersTest, AllProblemsOfTheOptionsAreReported) {
  const auto make = [] {
    NAdam optimizer(accel::testing::odd_parameters(),
                    {.lr = -1, .betas = {0.9, 1.0}, .eps = -2, .weight_decay = -3, .momentum_decay = -4});
  };
  EXPECT_THAT(accel::testing::error_of<ArgumentError>(make),
              AllOf(HasSubstr("NAdam: lr:"), HasSubstr("betas: expected two numbers in [0, 1), got (0.9, 1)"),
                    HasSubstr("eps:"), HasSubstr("weight_decay:"),
                    HasSubstr("momentum_decay: expected a number of 0 or more, got -4")));
}

TEST(OptimizersTest, ImpossibleOptionsAreArgumentErrors) {
  const auto params = odd_parameters();
  EXPECT_THROW(SGD(params, {.nesterov = true}), ArgumentError);
  EXPECT_THROW(SGD(params, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), ArgumentError);
  EXPECT_THROW(Adadelta(params, {.rho = 1.1}), ArgumentError);
  EXPECT_THROW(Rprop(params, {.etas = {0.5, 1.0}}), ArgumentError);
  EXPECT_THROW(Rprop(params, {.etas = {0.0, 1.2}}), ArgumentError);
  EXPECT_THROW(Rprop(params, {.etas = {0.5, std::numeric_limits<double>::infinity()}}), ArgumentError);
  EXPECT_THROW(Adagrad(params, {.initial_accumulator_value = -1}), ArgumentError);
  EXPECT_THROW(RMSprop(params, {.alpha = std::nan("")}), ArgumentError);
}

TEST(OptimizersTest, SchedulesReachTheMomentumOfEveryGroup) {
  Adam adam(odd_parameters(), {.betas = {0.8, 0.9}});
  SGD sgd(odd_parameters(), {.momentum = 0.7});
  Rprop rprop(odd_parameters());
  const auto group = [](torch::optim::Optimizer& optimizer) {
    return dynamic_cast<ParamGroupOptions*>(&optimizer.param_groups()[0].options());
  };
  EXPECT_EQ(group(adam)->get_momentum(), 0.8);
  EXPECT_EQ(group(sgd)->get_momentum(), 0.7);
  EXPECT_EQ(group(rprop)->get_momentum(), std::nullopt);
  group(adam)->set_momentum(0.85);
  group(sgd)->set_momentum(0.75);
  EXPECT_EQ(adam.options().betas, NumberPair(0.85, 0.9));
  EXPECT_EQ(sgd.options().momentum, 0.75);
  EXPECT_TRUE(group(adam)->momentum_is_beta1());
  EXPECT_FALSE(group(sgd)->momentum_is_beta1());
}

// Code that was written for LibTorch's optimizers casts the options of groups to these classes.
TEST(OptimizersTest, GroupsHaveLibTorchsOptionsClassIfItExists) {
  AdamW adam(odd_parameters(),
             torch::optim::AdamWOptions(0.5).betas({0.1, 0.2}).weight_decay(0.3).eps(0.4).amsgrad(true));
  auto* group = dynamic_cast<torch::optim::AdamWOptions*>(&adam.param_groups()[0].options());
  ASSERT_NE(group, nullptr);
  EXPECT_TRUE(*group == torch::optim::AdamWOptions(0.5).betas({0.1, 0.2}).weight_decay(0.3).eps(0.4).amsgrad(true));
  group->betas({0.6, 0.7});
  EXPECT_EQ(adam.options().betas, NumberPair(0.6, 0.7));
  EXPECT_EQ(adam.options().weight_decay, 0.3);
}

TEST(OptimizersTest, AGroupAddedWithLibTorchsOptionsStepsByThem) {
  const auto params = odd_parameters(), expected = odd_parameters();
  Adam adam({params[0]}), same({expected[0]});
  adam.torch::optim::Optimizer::add_param_group(
      torch::optim::OptimizerParamGroup({params[2]}, std::make_unique<torch::optim::AdamOptions>(0.3)));
  same.add_param_group({expected[2]}, {.lr = 0.3});
  run_steps(adam, params, {.from = 0, .to = 3});
  run_steps(same, expected, {.from = 0, .to = 3});
  EXPECT_TRUE(equal_bits(params, expected));
  EXPECT_FALSE(params[2].equal(odd_parameters()[2]));
}

TEST(OptimizersTest, OptionsOfAnotherOptimizerAreAnArgumentError) {
  const auto params = odd_parameters();
  Adam adam({params[0]});
  adam.torch::optim::Optimizer::add_param_group(
      torch::optim::OptimizerParamGroup({params[2]}, std::make_unique<torch::optim::SGDOptions>(0.3)));
  EXPECT_THROW(adam.step(), ArgumentError);
}

// amsgrad switched on later would start from a maximum that ignores the earlier steps.
TEST(OptimizersTest, StateThatIsMissingFromTheStartIsAStateError) {
  const auto params = odd_parameters();
  Adam adam(params);
  run_steps(adam, params, {.from = 0, .to = 1});
  adam.set_options({.amsgrad = true});
  EXPECT_THAT(accel::testing::error_of<StateError>([&] { adam.step(); }), HasSubstr("max_exp_avg_sq"));
}

// torch.optim treats complex parameters as pairs of reals (view_as_real).
TEST(OptimizersTest, ComplexParametersStepAsTwoNumbers) {
  const auto complex = torch::full({2}, c10::complex<float>(1, -2)).requires_grad_();
  const auto real = torch::view_as_real(complex.detach().clone()).clone().requires_grad_();
  RMSprop pairs({complex}), numbers({real});
  complex.mutable_grad() = torch::full({2}, c10::complex<float>(0.5, 3));
  real.mutable_grad() = torch::view_as_real(complex.grad()).clone();
  for (int step = 0; step < 3; ++step) {
    pairs.step();
    numbers.step();
  }
  EXPECT_TRUE(torch::view_as_real(complex.detach()).equal(real));
  EXPECT_THROW(Adam({complex}).step(), ArgumentError) << "fused kernels take no complex numbers";
}

TEST(OptimizersTest, BothPartsOfAComplexAccumulatorHaveTheInitialValue) {
  const auto weight = torch::full({2}, c10::complex<float>(1, -2)).requires_grad_();
  Adagrad optimizer({weight}, {.initial_accumulator_value = 0.5, .fused = false});
  weight.mutable_grad() = torch::zeros_like(weight);
  optimizer.step();
  const auto sum = optimizer.state_dict().at("state").at("0").at("sum").as<at::Tensor>();
  EXPECT_TRUE(torch::view_as_real(sum).equal(torch::full({2, 2}, 0.5)));
}

TEST(OptimizersTest, SgdUpdatesAllElementsInHalfPrecision) {
  // LibTorch's fused kernel for CPUs only updates the elements after the last full vector register, so 67 elements
  // show it.
  for (const auto dtype : {at::kBFloat16, at::kHalf}) {
    const auto weight = torch::zeros({67}, dtype).requires_grad_();
    SGD optimizer({weight}, {.lr = 1, .momentum = 0.5, .dampening = 0.25});
    weight.mutable_grad() = torch::ones({67}, dtype);
    optimizer.step();
    EXPECT_TRUE(weight.equal(torch::full({67}, -1.0, dtype)));
    optimizer.step();
    EXPECT_TRUE(weight.equal(torch::full({67}, -2.25, dtype)));  // 0.5 * 1 + 0.75 * 1
  }
}

// 0.999 is 1 in bfloat16, and comparing rounded factors would misinterpret the sign.
TEST(OptimizersTest, RpropStepsIfItsSmallerFactorRoundsToOne) {
  const auto weight = torch::zeros({3}, at::kBFloat16).requires_grad_();
  Rprop optimizer({weight}, {.lr = 0.5, .etas = {0.999, 2}});
  weight.mutable_grad() = torch::ones({3}, at::kBFloat16);
  optimizer.step();
  EXPECT_TRUE(weight.equal(torch::full({3}, -0.5, at::kBFloat16)));
  optimizer.step();
  EXPECT_TRUE(weight.equal(torch::full({3}, -1.5, at::kBFloat16)));  // the second step is twice as long
}

}  // namespace
}  // namespace accel::optim
