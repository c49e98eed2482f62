#include "reference/optim/optimizers/optimizer_state.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/state_dict/lbfgs_codec.hpp"
#include "reference/optim/state_dict/state_dict_codec.hpp"

// Dispatches on the optimizer's class: this library's optimizers have state dicts of their own; for LibTorch's,
// adapters below translate between its state classes and the tensors of this library's entries.
namespace accel::optim {
namespace {

// LibTorch counts steps with an integer, Python with a tensor of the default dtype (_get_scalar_dtype).
at::Tensor counter(std::int64_t step) {
  const bool is_double = at::typeMetaToScalarType(at::get_default_dtype()) == at::kDouble;
  return at::full({}, static_cast<double>(step), is_double ? at::kDouble : at::kFloat);
}

std::int64_t counted(const at::Tensor& step) {
  return step.defined() ? static_cast<std::int64_t>(step.item<double>()) : 0;
}

// Tensors of LibTorch's states in the order of state_entries, and back. The order is what connects the two, so each
// pair of functions must match the entries of its optimizer.
using Tensors = std::vector<at::Tensor>;

Tensors tensors_of(const torch::optim::SGDParamState& state) { return {state.momentum_buffer()}; }
void assign(torch::optim::SGDParamState& state, const Tensors& tensors) { state.momentum_buffer(tensors[0]); }

template <typename State>
concept AdamLike =
    std::same_as<State, torch::optim::AdamParamState> || std::same_as<State, torch::optim::AdamWParamState>;
template <AdamLike State>
Tensors tensors_of(const State& state) {
  return {counter(state.step()), state.exp_avg(), state.exp_avg_sq(), state.max_exp_avg_sq()};
}
template <AdamLike State>
void assign(State& state, const Tensors& tensors) {
  state.step(counted(tensors[0])).exp_avg(tensors[1]).exp_avg_sq(tensors[2]).max_exp_avg_sq(tensors[3]);
}

Tensors tensors_of(const torch::optim::AdagradParamState& state) { return {counter(state.step()), state.sum()}; }
void assign(torch::optim::AdagradParamState& state, const Tensors& tensors) {
  state.step(counted(tensors[0])).sum(tensors[1]);
}

Tensors tensors_of(const torch::optim::RMSpropParamState& state) {
  return {counter(state.step()), state.square_avg(), state.momentum_buffer(), state.grad_avg()};
}
void assign(torch::optim::RMSpropParamState& state, const Tensors& tensors) {
  state.step(counted(tensors[0])).square_avg(tensors[1]).momentum_buffer(tensors[2]).grad_avg(tensors[3]);
}

// State dicts of LibTorch's optimizer for these options. LibTorch steps without fused kernels, so states are those of
// the unfused form.
template <typename Options>
class LibTorchStateDictCodec : public StateDictCodec {
 public:
  using State = typename Options::LibTorchState;
  [[nodiscard]] Value::Dict write_options(const torch::optim::OptimizerOptions& group) const override {
    return optim::write_options(unfused(options_of<Options>(group)), Implementation::kLibTorch);
  }
  [[nodiscard]] Value::Dict write_state(const torch::optim::OptimizerParamState& state) const override {
    return write_tensors(tensors_of(static_cast<const State&>(state)), state_entries(unfused(Options())));
  }
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerOptions> read_options(
      const Value::Dict& dict, const torch::optim::OptimizerOptions& now, const std::string& place,
      StateDictProblems& problems) const override {
    const auto options = read_group(dict, options_of<Options>(now), place, problems);
    if (options.maximize)
      problems.add(fmt::format("{}.maximize: LibTorch's {} does not support it; use accel::optim::{}", place,
                               Options::kName, Options::kName));
    auto group = std::make_unique<typename Options::LibTorch>(options.lr);
    options.assign_to(*group);
    return group;
  }
  [[nodiscard]] std::unique_ptr<torch::optim::OptimizerParamState> read_state(
      const Value::Dict& dict, const at::Tensor& param, const torch::optim::OptimizerOptions& options,
      const std::string& place, StateDictProblems& problems) const override {
    auto state = std::make_unique<State>();
    assign(*state, read_tensors(dict, param, state_entries(unfused(options_of<Options>(options))), place, problems));
    return state;
  }

 private:
  static Options unfused(Options options) {
    // The fused form stores its step on another device and in another dtype.
    if constexpr (requires { options.fused; }) options.fused = false;
    return options;
  }
};

// Null for an optimizer of an unsupported class.
std::unique_ptr<StateDictCodec> codec_of(const torch::optim::Optimizer& optimizer) {
  if (const auto* lbfgs = dynamic_cast<const torch::optim::LBFGS*>(&optimizer))
    return std::make_unique<LbfgsCodec>(*lbfgs);
  std::unique_ptr<StateDictCodec> form;
  for_each_optimizer([&]<typename Options>(const OptimizerEntry<Options>&) {
    // Only optimizers that LibTorch has, too, name its class.
    if constexpr (requires { typename Options::LibTorchOptimizer; }) {
      if (dynamic_cast<const typename Options::LibTorchOptimizer*>(&optimizer) != nullptr)
        form = std::make_unique<LibTorchStateDictCodec<Options>>();
    }
  });
  return form;
}

std::unique_ptr<StateDictCodec> required_codec_of(const torch::optim::Optimizer& optimizer) {
  auto form = codec_of(optimizer);
  check_argument(form != nullptr,
                 "state_dict: unsupported class of optimizer; expected an optimizer of accel::optim, or LibTorch's "
                 "SGD, Adam, AdamW, Adagrad, RMSprop or LBFGS");
  return form;
}

bool has_state_dict(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const OptimizerWithStateDict*>(&optimizer) != nullptr || codec_of(optimizer) != nullptr;
}

void append_tensors(const Value& value, std::vector<at::Tensor>& tensors) {
  if (value.is<at::Tensor>()) tensors.push_back(value.as<at::Tensor>());
  if (value.is<Value::List>()) {
    for (const auto& entry : value.as<Value::List>()) append_tensors(entry, tensors);
  }
  if (value.is<Value::Dict>()) {
    for (const auto& [key, entry] : value.as<Value::Dict>()) append_tensors(entry, tensors);
  }
}

}  // namespace

std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

Value state_dict(const torch::optim::Optimizer& optimizer) {
  if (const auto* ours = dynamic_cast<const OptimizerWithStateDict*>(&optimizer)) return ours->state_dict();
  return write_state_dict(optimizer, *required_codec_of(optimizer));
}

std::vector<at::Tensor> state_tensors(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> tensors;
  if (has_state_dict(optimizer)) append_tensors(state_dict(optimizer).at("state"), tensors);
  return tensors;
}

void load_state_dict(torch::optim::Optimizer& optimizer, const Value& state_dict) {
  if (auto* ours = dynamic_cast<OptimizerWithStateDict*>(&optimizer)) return ours->load_state_dict(state_dict);
  read_state_dict(optimizer, state_dict, *required_codec_of(optimizer));
}

void move_state_to_parameters(torch::optim::Optimizer& optimizer) {
  const auto parameters = parameters_of(optimizer);
  // A state dict round trip moves every tensor to its parameter's device. On the CPU nothing can have moved, so the
  // copy is skipped.
  const bool may_have_moved =
      std::any_of(parameters.begin(), parameters.end(), [](const auto& parameter) { return !parameter.is_cpu(); });
  if (may_have_moved && has_state_dict(optimizer) && !optimizer.state().empty())
    load_state_dict(optimizer, state_dict(optimizer));
}

bool has_stepped(const torch::optim::Optimizer& optimizer) {
  if (const auto* ours = dynamic_cast<const OptimizerWithStateDict*>(&optimizer)) return ours->has_stepped();
  // Only Adagrad creates state before the first step; its step count tells the two cases apart.
  const bool is_adagrad = dynamic_cast<const torch::optim::Adagrad*>(&optimizer) != nullptr;
  return std::any_of(optimizer.state().begin(), optimizer.state().end(), [&](const auto& entry) {
    return !is_adagrad || static_cast<const torch::optim::AdagradParamState&>(*entry.second).step() > 0;
  });
}

std::string sharding_problem(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::LBFGS*>(&optimizer) != nullptr)
    return "LBFGS does not support sharded models, because it needs inner products over all parameters";
  const auto* ours = dynamic_cast<const OptimizerWithStateDict*>(&optimizer);
  return ours == nullptr ? "" : ours->sharding_problem();
}

void restart(torch::optim::Optimizer& optimizer) {
  if (auto* ours = dynamic_cast<OptimizerWithStateDict*>(&optimizer)) return ours->restart();
  // Other LibTorch optimizers create their state in the first step.
  if (dynamic_cast<torch::optim::Adagrad*>(&optimizer) == nullptr) return;
  const auto& defaults = static_cast<const torch::optim::AdagradOptions&>(optimizer.defaults());
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) {
      auto state = std::make_unique<torch::optim::AdagradParamState>();
      state->sum(at::full_like(parameter.detach(), defaults.initial_accumulator_value()));
      optimizer.state()[parameter.unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

}  // namespace accel::optim
