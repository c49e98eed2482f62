#pragma once

#include <ATen/core/grad_mode.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "reference/core/named_tensors.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"
#include "reference/optim/state_dict/state_dict_codec.hpp"

/// Definitions of MultiTensorOptimizer's members, for the sources that instantiate it with their options.
namespace accel::optim {

template <typename Options>
Options MultiTensorOptimizer<Options>::from_libtorch(const LibTorchOptions& options) {
  return options_of<Options>(options);
}

template <typename Options>
MultiTensorOptimizer<Options>::MultiTensorOptimizer(const std::vector<ParamGroup<Options>>& groups,
                                                    const Options& defaults)
    : OptimizerWithStateDict(std::vector<torch::optim::OptimizerParamGroup>(),
                             std::make_unique<GroupOptions<Options>>(defaults)) {
  throw_problems(Options::kName, problems_of(defaults));
  for (const auto& group : groups) add_param_group(group.params, group.options.value_or(defaults));
}

template <typename Options>
void MultiTensorOptimizer<Options>::add_param_group(std::vector<at::Tensor> params, const Options& options) {
  throw_problems(Options::kName, problems_of(options));
  params = unique_tensors(std::move(params));
  std::set<const void*> known;
  for (const auto& group : param_groups_) {
    for (const auto& param : group.params()) known.insert(param.unsafeGetTensorImpl());
  }
  for (const auto& param : params) {
    check_argument(!known.contains(param.unsafeGetTensorImpl()),
                   "{}: a parameter of shape [{}] is in two groups; list it in one group", Options::kName,
                   fmt::join(param.sizes(), ", "));
    check_argument(param.is_leaf(), "{}: a tensor of shape [{}] was computed from others; expected a parameter",
                   Options::kName, fmt::join(param.sizes(), ", "));
    if constexpr (requires { Options::problem_of(param); }) {
      const auto problem = Options::problem_of(param);
      check_argument(problem.empty(), "{}: {}", Options::kName, problem);
    }
  }
  param_groups_.emplace_back(std::move(params), std::make_unique<GroupOptions<Options>>(options));
  if constexpr (kHasStateFromStart) make_state_of(param_groups_.back());
}

template <typename Options>
bool MultiTensorOptimizer<Options>::has_stepped() const {
  return std::any_of(state_.begin(), state_.end(), [](const auto& entry) {
    return !kHasStateFromStart ||
           static_cast<const ParamState&>(*entry.second).tensors.front().template item<double>() > 0;  // the step count
  });
}

template <typename Options>
void MultiTensorOptimizer<Options>::restart() {
  if constexpr (kHasStateFromStart) {
    for (const auto& group : param_groups_) make_state_of(group);
  }
}

template <typename Options>
void MultiTensorOptimizer<Options>::make_state_of(const torch::optim::OptimizerParamGroup& group) {
  const auto entries = state_entries(options_of<Options>(group.options()));
  for (const auto& param : group.params()) state_[param.unsafeGetTensorImpl()] = initial_state(param, entries);
}

template <typename Options>
Options MultiTensorOptimizer<Options>::options(std::size_t group) const {
  check_argument(group < param_groups_.size(), "{}: group {} of {}", Options::kName, group, param_groups_.size());
  return options_of<Options>(param_groups_[group].options());
}

template <typename Options>
void MultiTensorOptimizer<Options>::set_options(const Options& options, std::size_t group) {
  check_argument(group < param_groups_.size(), "{}: group {} of {}", Options::kName, group, param_groups_.size());
  throw_problems(Options::kName, problems_of(options));
  if (auto* ours = dynamic_cast<GroupOptions<Options>*>(&param_groups_[group].options())) {
    ours->write(options);
  } else {
    param_groups_[group].set_options(std::make_unique<GroupOptions<Options>>(options));
  }
}

template <typename Options>
at::Tensor MultiTensorOptimizer<Options>::step(LossClosure closure) {
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode grad_on(true);
    loss = closure();
  }
  update_groups(/*found_inf=*/{});
  return loss;
}

template <typename Options>
void MultiTensorOptimizer<Options>::update_groups(const at::Tensor& found_inf) {
  const at::NoGradGuard no_grad;
  constexpr bool is_sparse = requires { Options::kSparseGradients; };
  for (std::size_t index = 0; index < param_groups_.size(); ++index) {
    auto& group = param_groups_[index];
    const auto options = options_of<Options>(group.options());
    const auto entries = state_entries(options);
    for (auto& lists : gather_tensors(group.params(), entries, state_,
                                      {.optimizer = Options::kName, .fused = is_fused(options), .sparse = is_sparse})) {
      lists.lr = lr_tensor(index);
      lists.found_inf = found_inf;
      update(lists, options);
    }
  }
}

template <typename Options>
bool MultiTensorOptimizer<Options>::is_capturable() const {
  if constexpr (requires { Options::kStepsOnDevice; }) {
    return std::all_of(param_groups_.begin(), param_groups_.end(),
                       [](const auto& group) { return is_fused(options_of<Options>(group.options())); });
  } else {
    return false;
  }
}

template <typename Options>
std::string MultiTensorOptimizer<Options>::sharding_problem() const {
  if constexpr (requires { Options::kNotOnShards; }) {
    return fmt::format("{} does not support sharded models, because {}", Options::kName, Options::kNotOnShards);
  } else {
    return "";
  }
}

// A first step is decided on the host: a step that is skipped creates no state, as in Python.
template <typename Options>
bool MultiTensorOptimizer<Options>::can_skip_on_device() const {
  if constexpr (requires { Options::kStepsOnDevice; }) {
    std::optional<c10::Device> device;
    for (const auto& group : param_groups_) {
      if (!is_fused(options_of<Options>(group.options()))) return false;
      for (const auto& param : group.params()) {
        if (!param.grad().defined()) continue;
        if (param.is_cpu() || param.device() != device.value_or(param.device())) return false;
        if (state_.count(param.unsafeGetTensorImpl()) == 0) return false;
        device = param.device();
      }
    }
    return device.has_value();
  } else {
    return false;
  }
}

template <typename Options>
Value MultiTensorOptimizer<Options>::state_dict() const {
  return write_state_dict(*this, OwnStateDictCodec<Options>());
}

template <typename Options>
void MultiTensorOptimizer<Options>::load_state_dict(const Value& state_dict) {
  read_state_dict(*this, state_dict, OwnStateDictCodec<Options>());
}

}  // namespace accel::optim
