// Tests of the state dicts of optimizers: ours, LibTorch's, and LBFGS. They guard three promises: a resumed
// training computes the same bits as one without a break; the dict has the form of Python's, so that checkpoints
// can be exchanged; and a dict that does not fit is rejected as a whole, with all its errors in one message.
#include "reference/optim/optimizers/optimizer_state.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/tree/tree_bytes.hpp"
#include "tests/support/optimizer_steps.hpp"
#include "tests/support/torch.hpp"

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Key;

namespace accel::optim {
namespace {

using accel::testing::equal_bits;
using accel::testing::error_of;
using accel::testing::odd_parameters;
using accel::testing::run_steps;
using accel::testing::with_all_state;

// Runs `half` steps, saves to bytes, loads them into another optimizer, and runs as many steps again. The
// parameters must equal those of a run without a break, bit for bit.
template <typename Options = SGDOptions, typename Make>
void expect_exact_resume(const Make& make, at::ScalarType dtype) {
  constexpr int kHalf = 4;
  const auto whole = odd_parameters<Options>(dtype), before = odd_parameters<Options>(dtype),
             after = odd_parameters<Options>(dtype);
  auto uninterrupted = make(whole), first = make(before), second = make(after);
  run_steps(*uninterrupted, whole, {.from = 0, .to = 2 * kHalf});
  run_steps(*first, before, {.from = 0, .to = kHalf});
  const auto saved = unpack<Value>(pack(state_dict(*first)));
  {
    const c10::NoGradGuard no_grad;
    for (std::size_t param = 0; param < after.size(); ++param) after[param].copy_(before[param]);
  }
  load_state_dict(*second, saved);
  EXPECT_EQ(state_dict(*second), saved);
  run_steps(*second, after, {.from = kHalf, .to = 2 * kHalf});
  EXPECT_TRUE(equal_bits(after, whole));
  EXPECT_EQ(state_dict(*second), state_dict(*uninterrupted));
  EXPECT_FALSE(equal_bits(before, whole)) << "the steps after the break did nothing";
}

template <typename Options>
class EveryStateDictTest : public ::testing::Test {};
TYPED_TEST_SUITE(EveryStateDictTest, accel::testing::AllOptions, accel::testing::OptionsNames);

// In float32, in float64, and in bfloat16, which rounds most.
TYPED_TEST(EveryStateDictTest, ALoadedOptimizerContinuesBitForBit) {
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    expect_exact_resume<TypeParam>(
        [](const auto& params) {
          return std::make_unique<MultiTensorOptimizer<TypeParam>>(params, with_all_state<TypeParam>());
        },
        dtype);
  }
}

// The learning rate and the like are part of the state in PyTorch: the loaded ones replace those of the program.
TYPED_TEST(EveryStateDictTest, OptionsComeFromTheStateDict) {
  MultiTensorOptimizer<TypeParam> saved(odd_parameters<TypeParam>(), with_all_state<TypeParam>()),
      loaded(odd_parameters<TypeParam>());
  loaded.load_state_dict(saved.state_dict());
  EXPECT_EQ(loaded.options().lr, 0.05);
  EXPECT_EQ(loaded.state_dict(), saved.state_dict());
}

// Schedules keep "initial_lr" and others in the groups. Losing them would restart a schedule from the wrong rate.
TYPED_TEST(EveryStateDictTest, EntriesThatASchedulePutIntoAGroupAreKept) {
  MultiTensorOptimizer<TypeParam> saved(odd_parameters<TypeParam>()), loaded(odd_parameters<TypeParam>());
  dynamic_cast<ParamGroupOptions&>(saved.param_groups()[0].options()).extras()["initial_lr"] = 0.25;
  loaded.load_state_dict(saved.state_dict());
  EXPECT_EQ(loaded.state_dict().at("param_groups").template as<Value::List>()[0].at("initial_lr"), Value(0.25));
}

TYPED_TEST(EveryStateDictTest, AllErrorsAreReportedTogetherAndNothingIsLoaded) {
  const auto params = odd_parameters<TypeParam>();
  MultiTensorOptimizer<TypeParam> optimizer(params, with_all_state<TypeParam>());
  run_steps(optimizer, params, {.from = 0, .to = 2});
  const auto before = unpack<Value>(pack(optimizer.state_dict()));

  auto states = before.at("state").template as<Value::Dict>();
  auto groups = before.at("param_groups").template as<Value::List>();
  auto state = states.at("1").template as<Value::Dict>();
  const auto name = std::prev(state.end())->first == "step" ? state.begin()->first : std::prev(state.end())->first;
  state[name] = at::zeros({2, 2});
  state["unheard_of"] = 1;
  states["1"] = state;
  states["17"] = state;
  auto group = groups[0].template as<Value::Dict>();
  group["lr"] = "fast";
  groups[0] = group;
  EXPECT_THAT(error_of<CheckpointError>([&] {
                optimizer.load_state_dict(Value::Dict{{"state", states}, {"param_groups", groups}});
              }),
              AllOf(HasSubstr("param_groups[0].lr: expected a number, got string"), HasSubstr("state[1]." + name),
                    HasSubstr("got shape [2, 2]"), HasSubstr("state[1].unheard_of"),
                    HasSubstr("state[17]: no group has this parameter")));
  EXPECT_EQ(optimizer.state_dict(), before);
}

TEST(StateDictTest, HasPythonsKeys) {
  const auto params = odd_parameters();
  Adam adam(params, {.lr = 0.1, .weight_decay = 0.5});
  run_steps(adam, params, {.from = 0, .to = 3});
  const auto saved = adam.state_dict();
  EXPECT_THAT(saved.at("state").as<Value::Dict>(), ElementsAre(Key("0"), Key("1"), Key("2")));
  EXPECT_THAT(saved.at("state").at("2").as<Value::Dict>(), ElementsAre(Key("exp_avg"), Key("exp_avg_sq"), Key("step")));
  EXPECT_EQ(saved.at("state").at("2").at("step"), Value(at::tensor(3.0F).squeeze()));
  EXPECT_EQ(saved.at("param_groups"), Value(Value::List{Value::Dict{{"lr", 0.1},
                                                                    {"betas", Value::List{0.9, 0.999}},
                                                                    {"eps", 1e-8},
                                                                    {"weight_decay", 0.5},
                                                                    {"amsgrad", false},
                                                                    {"maximize", false},
                                                                    {"foreach", {}},
                                                                    {"capturable", false},
                                                                    {"differentiable", false},
                                                                    {"fused", true},
                                                                    {"decoupled_weight_decay", false},
                                                                    {"params", Value::List{0, 1, 2}}}}));
}

// Plain SGD has no state. Adagrad has its state from its construction on, before any step.
TEST(StateDictTest, ParametersWithoutStateAreLeftOut) {
  const auto params = odd_parameters();
  SGD plain(params);
  run_steps(plain, params, {.from = 0, .to = 1});
  EXPECT_TRUE(plain.state_dict().at("state").as<Value::Dict>().empty());
  Adagrad adagrad(params);
  EXPECT_EQ(adagrad.state_dict().at("state").as<Value::Dict>().size(), 3U) << "Adagrad's is there before a gradient is";
}

// Python numbers the parameters across all groups and finds their state by this number.
TEST(StateDictTest, ParametersAreNumberedAcrossGroups) {
  const auto params = odd_parameters();
  NAdam optimizer({ParamGroup<NAdamOptions>{{params[0]}, {}}, {{params[1], params[2]}, NAdamOptions{.lr = 0.3}}});
  const auto groups = optimizer.state_dict().at("param_groups").as<Value::List>();
  EXPECT_EQ(groups[0].at("params"), Value(Value::List{0}));
  EXPECT_EQ(groups[1].at("params"), Value(Value::List{1, 2}));
  EXPECT_EQ(groups[1].at("lr"), Value(0.3));
}

// Both the number of groups and the number of parameters in each have to agree.
TEST(StateDictTest, GroupsOfOtherSizesDoNotFit) {
  const auto params = odd_parameters();
  SGD one(params), two({ParamGroup<SGDOptions>{{params[0]}, {}}, {{params[1], params[2]}, {}}}), few({params[0]});
  EXPECT_THAT(error_of<CheckpointError>([&] { one.load_state_dict(two.state_dict()); }),
              HasSubstr("expected 1 groups, got 2"));
  EXPECT_THAT(error_of<CheckpointError>([&] { few.load_state_dict(one.state_dict()); }),
              HasSubstr("param_groups[0].params: expected 1 parameters, got 3"));
  EXPECT_THAT(error_of<CheckpointError>([&] { one.load_state_dict(Value()); }), HasSubstr("expected a dict"));
  EXPECT_THAT(error_of<CheckpointError>([&] {
                one.load_state_dict(Value::Dict{{"state", Value::Dict()}, {"param_groups", Value::List{1}}});
              }),
              HasSubstr("param_groups[0]"));
}

// As in PyTorch. A NAdam step count and its product of momenta must not be rounded to a 16-bit parameter's dtype.
TEST(StateDictTest, TensorsAreCastToTheParametersDtypeAndScalarsKeepTheirs) {
  const auto wide = odd_parameters(at::kDouble), narrow = odd_parameters(at::kFloat);
  NAdam from(wide), to(narrow);
  run_steps(from, wide, {.from = 0, .to = 2});
  to.load_state_dict(from.state_dict());
  const auto loaded = to.state_dict().at("state").at("2"), saved = from.state_dict().at("state").at("2");
  EXPECT_EQ(loaded.at("exp_avg"), Value(saved.at("exp_avg").as<at::Tensor>().to(at::kFloat)));
  EXPECT_EQ(loaded.at("mu_product"), saved.at("mu_product"));
}

// A shared tensor would let one optimizer's steps change the other's state.
TEST(StateDictTest, ALoadedTensorIsACopy) {
  const auto params = odd_parameters(), others = odd_parameters();
  Adam from(params), to(others);
  run_steps(from, params, {.from = 0, .to = 2});
  const auto saved = from.state_dict();
  const auto before = unpack<Value>(pack(saved));
  to.load_state_dict(saved);
  run_steps(to, others, {.from = 2, .to = 4});
  EXPECT_EQ(saved, before);
}

// PyTorch before 1.12 stored the step count as a number; now it is a tensor.
TEST(StateDictTest, StepsThatOldVersionsWroteAsNumbersAreRead) {
  const auto params = odd_parameters();
  Adam adam({params[0]});
  run_steps(adam, {params[0]}, {.from = 0, .to = 2});
  auto state = adam.state_dict().at("state").at("0").as<Value::Dict>();
  state["step"] = 7;
  adam.load_state_dict(
      Value::Dict{{"state", Value::Dict{{"0", state}}}, {"param_groups", adam.state_dict().at("param_groups")}});
  EXPECT_EQ(adam.state_dict().at("state").at("0").at("step"), Value(at::tensor(7.0F).squeeze()));
}

// The option `fused` is part of Python's dict, where it may also be null.
TEST(StateDictTest, FusedAndMultiTensorFormsFollowTheStateDict) {
  Adam fused(odd_parameters()), foreach (odd_parameters(), {.fused = false});
  fused.load_state_dict(foreach.state_dict());
  EXPECT_FALSE(fused.options().fused);
  // A Python run with default options stores neither of the two, and the form of ours is kept.
  torch::optim::Adam neither(odd_parameters());
  fused.load_state_dict(state_dict(neither));
  EXPECT_FALSE(fused.options().fused);
}

// --- LibTorch's own optimizers ---

template <typename Optimizer, typename Options>
void expect_exact_resume_of_libtorchs(const Options& options) {
  expect_exact_resume([&](const auto& params) { return std::make_unique<Optimizer>(params, options); }, at::kFloat);
}

// LibTorch's own form cannot be loaded by Python, so it is converted; nothing may be lost on the way.
TEST(LibTorchStateDictTest, ALoadedOptimizerContinuesBitForBit) {
  expect_exact_resume_of_libtorchs<torch::optim::SGD>(
      torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.01));
  expect_exact_resume_of_libtorchs<torch::optim::Adam>(torch::optim::AdamOptions(0.1).betas({0.8, 0.9}).amsgrad(true));
  expect_exact_resume_of_libtorchs<torch::optim::AdamW>(
      torch::optim::AdamWOptions(0.1).betas({0.8, 0.9}).amsgrad(true));
  expect_exact_resume_of_libtorchs<torch::optim::Adagrad>(
      torch::optim::AdagradOptions(0.1).lr_decay(0.1).initial_accumulator_value(0.5));
  expect_exact_resume_of_libtorchs<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.1).momentum(0.9).centered(true));
}

TEST(LibTorchStateDictTest, HasTheFormOfPythonsPlainOptimizer) {
  const auto params = odd_parameters();
  torch::optim::SGD sgd(params, torch::optim::SGDOptions(0.1).momentum(0.9));
  run_steps(sgd, params, {.from = 0, .to = 1});
  const auto saved = state_dict(sgd);
  EXPECT_EQ(saved.at("state").at("1"), Value(Value::Dict{{"momentum_buffer", params[1].grad()}}));
  EXPECT_EQ(saved.at("param_groups"), Value(Value::List{Value::Dict{{"lr", 0.1},
                                                                    {"momentum", 0.9},
                                                                    {"dampening", 0.0},
                                                                    {"weight_decay", 0.0},
                                                                    {"nesterov", false},
                                                                    {"maximize", false},
                                                                    {"foreach", {}},
                                                                    {"differentiable", false},
                                                                    {"fused", {}},
                                                                    {"params", Value::List{0, 1, 2}}}}));
}

// Users may switch between LibTorch's optimizer and our fused one without losing their moments.
TEST(LibTorchStateDictTest, ItsStateMovesIntoTheFusedOptimizerAndBack) {
  const auto params = odd_parameters(), others = odd_parameters();
  torch::optim::AdamW libtorchs(params, torch::optim::AdamWOptions(0.1));
  AdamW fused(others);
  run_steps(libtorchs, params, {.from = 0, .to = 3});
  load_state_dict(fused, state_dict(libtorchs));
  EXPECT_TRUE(fused.options().fused);
  EXPECT_EQ(fused.options().lr, 0.1);
  EXPECT_EQ(fused.state_dict().at("state"), state_dict(libtorchs).at("state"));
  run_steps(fused, others, {.from = 3, .to = 5});
  load_state_dict(libtorchs, fused.state_dict());
  EXPECT_EQ(fused.state_dict().at("state"), state_dict(libtorchs).at("state"));
}

struct OptimizerOfAnother : torch::optim::Optimizer {
  explicit OptimizerOfAnother(std::vector<at::Tensor> params)
      : Optimizer(std::move(params), std::make_unique<torch::optim::SGDOptions>(0.1)) {}
  at::Tensor step(LossClosure /*closure*/) override { return {}; }
};

// We do not know what state a user's own optimizer has. Saving nothing without an error would lose it.
TEST(LibTorchStateDictTest, AnUnknownOptimizerIsAnArgumentError) {
  OptimizerOfAnother another(odd_parameters());
  EXPECT_THROW(static_cast<void>(state_dict(another)), ArgumentError);
  EXPECT_THROW(load_state_dict(another, Value()), ArgumentError);
}

// After a model is moved to another device, the optimizer's tensors must follow it there.
TEST(LibTorchStateDictTest, StateFollowsItsParameters) {
  const std::vector<at::Tensor> params{
      at::ones({3}, at::kMeta).requires_grad_()};  // stands for a parameter that was moved
  Adagrad ours(params);
  torch::optim::Adagrad libtorchs(params);
  OptimizerOfAnother another(params);
  static_cast<ParamState&>(*ours.state().begin()->second).tensors = {at::zeros({}), at::zeros({3})};
  static_cast<torch::optim::AdagradParamState&>(*libtorchs.state().begin()->second).sum(at::zeros({3}));
  for (torch::optim::Optimizer* optimizer : std::initializer_list<torch::optim::Optimizer*>{&ours, &libtorchs}) {
    move_state_to_parameters(*optimizer);
    EXPECT_TRUE(state_dict(*optimizer).at("state").at("0").at("sum").as<at::Tensor>().is_meta());
  }
  move_state_to_parameters(another);
}

// --- LBFGS ---

at::Tensor distance(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params) {
  optimizer.zero_grad();
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (const auto& param : params) loss = loss + (param - 3).square().square().sum() + (param * param.cos()).sum();
  loss.backward();
  return loss;
}

// LBFGS keeps a history of steps and gradients, and its line search keeps numbers between steps.
TEST(LbfgsStateDictTest, ALoadedOptimizerContinuesBitForBit) {
  for (const auto* search : {"", "strong_wolfe"}) {
    auto options = torch::optim::LBFGSOptions(0.5).max_iter(3).history_size(4);
    if (*search != 0) options.line_search_fn(search);
    const auto whole = odd_parameters(at::kDouble), before = odd_parameters(at::kDouble),
               after = odd_parameters(at::kDouble);
    torch::optim::LBFGS uninterrupted(whole, options), first(before, options), second(after);
    const auto steps = [](torch::optim::LBFGS& optimizer, const std::vector<at::Tensor>& params, int number) {
      for (int step = 0; step < number; ++step) optimizer.step([&] { return distance(optimizer, params); });
    };
    steps(uninterrupted, whole, 5);
    steps(first, before, 2);
    const auto saved = unpack<Value>(pack(state_dict(first)));
    {
      const c10::NoGradGuard no_grad;
      for (std::size_t param = 0; param < after.size(); ++param) after[param].copy_(before[param]);
    }
    load_state_dict(second, saved);
    EXPECT_EQ(state_dict(second), saved);
    steps(second, after, 3);
    EXPECT_TRUE(equal_bits(after, whole));
    EXPECT_EQ(state_dict(second), state_dict(uninterrupted));
  }
}

TEST(LbfgsStateDictTest, AllErrorsAreReportedTogetherAndNothingIsLoaded) {
  const auto params = odd_parameters(at::kDouble);
  torch::optim::LBFGS saved(params), loaded(odd_parameters(at::kDouble));
  saved.step([&] { return distance(saved, params); });
  auto state = state_dict(saved).as<Value::Dict>();
  auto first = state.at("state").at("0").as<Value::Dict>();
  first["d"] = at::zeros({2}, at::kDouble);
  first["ro"] = Value::List{};
  first.erase("t");
  state["state"] = Value::Dict{{"0", first}};
  auto group = state.at("param_groups").as<Value::List>().front().as<Value::Dict>();
  group["line_search_fn"] = "golden";
  state["param_groups"] = Value::List{group};
  EXPECT_THAT(error_of<CheckpointError>([&] { load_state_dict(loaded, state); }),
              AllOf(HasSubstr("state[0].d: expected a tensor of"), HasSubstr("state[0].t"),
                    HasSubstr("old_dirs: expected as many"), HasSubstr("line_search_fn")));
  EXPECT_TRUE(loaded.state().empty());
}

// What Python stores after the first step: H_diag is a number, t is a tensor, and al has empty places.
TEST(LbfgsStateDictTest, PythonsKindsOfNumbersAreRead) {
  const std::vector<at::Tensor> params{at::ones({2}, at::kDouble).requires_grad_()};
  torch::optim::LBFGS lbfgs(params, torch::optim::LBFGSOptions().history_size(2));
  auto state = state_dict(lbfgs).as<Value::Dict>();
  const auto zeros = at::zeros({2}, at::kDouble);
  state["state"] = Value::Dict{{"0", Value::Dict{{"func_evals", 1},
                                                 {"n_iter", 1},
                                                 {"d", zeros},
                                                 {"t", at::scalar_tensor(0.5, at::kDouble)},
                                                 {"H_diag", 1},
                                                 {"prev_loss", 2.0},
                                                 {"prev_flat_grad", zeros},
                                                 {"old_dirs", Value::List{zeros}},
                                                 {"old_stps", Value::List{zeros}},
                                                 {"ro", Value::List{at::scalar_tensor(3.0, at::kDouble)}},
                                                 {"al", Value::List{Value(), Value()}}}}};
  load_state_dict(lbfgs, state);
  const auto again = state_dict(lbfgs).at("state").at("0");
  EXPECT_EQ(again.at("t"), Value(0.5));
  EXPECT_TRUE(again.at("H_diag").as<at::Tensor>().equal(at::ones({}, at::kDouble)));
  EXPECT_EQ(again.at("al").as<Value::List>().size(), 2);
}

// LibTorch's SGD has no `maximize`: loading such a state would train in the wrong direction.
TEST(LibTorchStateDictTest, MaximizingCannotBeLoaded) {
  SGD maximizes(odd_parameters(), {.maximize = true});
  torch::optim::SGD minimizes(odd_parameters(), 0.5);
  EXPECT_THAT(error_of<CheckpointError>([&] { load_state_dict(minimizes, maximizes.state_dict()); }),
              HasSubstr("maximize"));
  EXPECT_EQ(minimizes.param_groups()[0].options().get_lr(), 0.5);
}

}  // namespace
}  // namespace accel::optim
