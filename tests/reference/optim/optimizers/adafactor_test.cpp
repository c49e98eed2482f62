// Adafactor beyond what all optimizers share. Its values are compared in recorded_optimizers_test.cpp.
#include "reference/optim/optimizers/adafactor.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/torch.hpp"

namespace accel::optim {
namespace {

using accel::testing::error_of;
using accel::testing::odd_parameters;
using accel::testing::run_steps;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

// The rounding of a group in several dtypes is that of its first parameter, in both forms.
TEST(AdafactorTest, TheEpsilonIsThatOfTheFirstParameter) {
  for (const bool foreach : {false, true}) {
    const auto narrow = torch::ones({2}, at::kBFloat16).requires_grad_(), wide = torch::ones({3}).requires_grad_();
    const auto same = torch::ones({3}).requires_grad_();
    Adafactor mixed({narrow, wide}, {.foreach = foreach});
    Adafactor explicitly({same}, {.eps = {0.0078125, 1e-3}, .foreach = foreach});
    narrow.mutable_grad() = torch::ones({2}, at::kBFloat16);
    wide.mutable_grad() = same.mutable_grad() = torch::full({3}, 1e-4);
    mixed.step();
    explicitly.step();
    EXPECT_TRUE(wide.equal(same));
    EXPECT_FALSE(wide.equal(torch::ones({3})));
  }
}

TEST(AdafactorTest, StateDictHasPythonsKeys) {
  const auto params = odd_parameters();
  Adafactor adafactor(params);
  run_steps(adafactor, params, {.from = 0, .to = 1});
  EXPECT_EQ(adafactor.state_dict().at("param_groups"),
            Value(Value::List{Value::Dict{{"lr", 0.01},
                                          {"beta2_decay", -0.8},
                                          {"eps", Value::List{{}, 1e-3}},
                                          {"d", 1.0},
                                          {"weight_decay", 0.0},
                                          {"foreach", {}},
                                          {"maximize", false},
                                          {"params", Value::List{0, 1, 2}}}}));
  const auto states = adafactor.state_dict().at("state");
  EXPECT_THAT(states.at("1").as<Value::Dict>(), ElementsAre(Key("step"), Key("variance")));
  EXPECT_THAT(states.at("2").as<Value::Dict>(), ElementsAre(Key("col_var"), Key("row_var"), Key("step")));
}

// A state of factors belongs to matrices, one without to vectors.
TEST(AdafactorTest, TheStateOfAMatrixDoesNotFitAVector) {
  const auto params = odd_parameters();
  Adafactor matrix({params[2]}), vector({params[1]});
  run_steps(matrix, {params[2]}, {.from = 0, .to = 1});
  EXPECT_THAT(error_of<CheckpointError>([&] { vector.load_state_dict(matrix.state_dict()); }),
              AllOf(HasSubstr("state[0].row_var: unexpected entry"), HasSubstr("state[0].variance: missing")));
}

TEST(AdafactorTest, ImpossibleOptionsAreErrors) {
  const auto params = odd_parameters();
  EXPECT_THROW(Adafactor(params, {.beta2_decay = 0.1}), ArgumentError);
  EXPECT_THROW(Adafactor(params, {.eps = {-1.0, 0.1}}), ArgumentError);
  EXPECT_THROW(Adafactor({torch::ones({2, 2}, at::kComplexFloat).requires_grad_()}), ArgumentError);
  Adafactor adafactor(params);
  auto group = adafactor.state_dict().at("param_groups").as<Value::List>().front().as<Value::Dict>();
  const auto error_with = [&](const Value& eps, const Value& foreach) {
    group["eps"] = eps;
    group["foreach"] = foreach;
    return error_of<CheckpointError>([&] {
      adafactor.load_state_dict(Value::Dict{{"state", Value::Dict()}, {"param_groups", Value::List{group}}});
    });
  };
  EXPECT_THAT(error_with(Value::List{1e-3, {}}, "yes"),
              AllOf(HasSubstr("eps: expected a list of a number or null and a number, got list"),
                    HasSubstr("foreach: expected true or false, got string")));
  EXPECT_THAT(error_with(Value::List{{}, -1.0}, {}), HasSubstr("got (none, -1)"));
}

}  // namespace
}  // namespace accel::optim
