// Muon beyond what all optimizers share. Its values are compared in recorded_optimizers_test.cpp.
#include "reference/optim/optimizers/muon.hpp"

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
using ::testing::HasSubstr;

TEST(MuonTest, ParametersThatAreNoMatricesAreErrors) {
  EXPECT_THAT(error_of<ArgumentError>([] { Muon muon(odd_parameters()); }),
              HasSubstr("Muon: a parameter of shape [1] has 1 dimensions; expected matrices"));
  EXPECT_THROW(Muon({torch::ones({2, 2, 2}).requires_grad_()}), ArgumentError);
  EXPECT_THROW(Muon({torch::ones({2, 2}, at::kComplexFloat).requires_grad_()}), ArgumentError);
}

TEST(MuonTest, StateDictHasPythonsKeys) {
  Muon muon(odd_parameters<MuonOptions>(), {.adjust_lr_fn = "original"});
  EXPECT_EQ(muon.state_dict().at("param_groups"),
            Value(Value::List{Value::Dict{{"lr", 1e-3},
                                          {"weight_decay", 0.1},
                                          {"momentum", 0.95},
                                          {"nesterov", true},
                                          {"ns_coefficients", Value::List{3.4445, -4.775, 2.0315}},
                                          {"eps", 1e-7},
                                          {"ns_steps", 5},
                                          {"adjust_lr_fn", "original"},
                                          {"params", Value::List{0, 1, 2}}}}));
}

TEST(MuonTest, ImpossibleOptionsAreErrors) {
  Muon muon(odd_parameters<MuonOptions>());
  auto saved = muon.state_dict().at("param_groups").as<Value::List>().front().as<Value::Dict>();
  const auto error_with = [&](const Value::Dict& entries) {
    auto group = saved;
    for (const auto& [name, value] : entries) group[name] = value;
    return error_of<CheckpointError>([&] {
      muon.load_state_dict(Value::Dict{{"state", Value::Dict()}, {"param_groups", Value::List{group}}});
    });
  };
  EXPECT_THAT(error_with({{"ns_steps", 2.5}, {"ns_coefficients", Value::List{1.0, 2.0}}, {"adjust_lr_fn", 1}}),
              AllOf(HasSubstr("ns_steps: expected a whole number, got 2.5"),
                    HasSubstr("ns_coefficients: expected a list of three numbers, got list"),
                    HasSubstr("adjust_lr_fn: expected a string or null, got int")));
  EXPECT_THAT(error_with({{"ns_steps", 100}, {"adjust_lr_fn", "other"}}),
              AllOf(HasSubstr("ns_steps: expected fewer than 100 iterations, got 100"),
                    HasSubstr("adjust_lr_fn: expected original or match_rms_adamw, got 'other'")));
  EXPECT_THROW(muon.set_options({.ns_steps = 100}), ArgumentError);
}

// Python divides by the number of elements, or by a size, and raises ZeroDivisionError.
TEST(MuonTest, EmptyMatricesAreStepped) {
  const auto empty = torch::zeros({2, 0}).requires_grad_(), full = torch::ones({2, 2}).requires_grad_();
  const std::vector<at::Tensor> params{empty, full};
  optim::Adafactor adafactor(params);
  Muon muon(params);
  for (torch::optim::Optimizer* optimizer : std::initializer_list<torch::optim::Optimizer*>{&adafactor, &muon}) {
    const auto before = full.detach().clone();
    run_steps(*optimizer, params, {.from = 0, .to = 2});
    EXPECT_FALSE(full.equal(before));
    EXPECT_TRUE(full.isfinite().all().item<bool>());
  }
}

// Steps have the size of AdamW's: each element moves by about 0.2 times the rate.
TEST(MuonTest, StepsMatchTheSizeOfAdamWs) {
  const auto weight = torch::zeros({40, 10}, at::kDouble).requires_grad_();
  Muon muon({weight}, {.lr = 1, .weight_decay = 0, .adjust_lr_fn = "match_rms_adamw"});
  run_steps(muon, {weight}, {.from = 0, .to = 1});
  // The iteration leaves singular values between 0.7 and 1.2.
  EXPECT_NEAR(weight.detach().square().mean().sqrt().item<double>(), 0.2, 0.05);
}

}  // namespace
}  // namespace accel::optim
