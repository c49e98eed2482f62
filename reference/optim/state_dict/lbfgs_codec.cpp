#include "reference/optim/state_dict/lbfgs_codec.hpp"

#include <ATen/ATen.h>

#include <deque>

// LibTorch's LBFGSParamState field by field. Unlike other optimizers, LBFGS keeps numbers and histories of flat
// tensors, so the general code for state entries does not apply.
namespace accel::optim {
namespace {

using torch::optim::LBFGSOptions;
using torch::optim::LBFGSParamState;

template <typename Tensors>
Value::List list_of(const Tensors& tensors) {
  Value::List list;
  for (const auto& tensor : tensors) list.push_back(tensor.defined() ? Value(tensor) : Value());
  return list;
}

// Reads the entries of one state; problems are collected, and a placeholder is returned, so that reading can continue.
class StateReader {
 public:
  StateReader(const Value::Dict& dict, const at::Tensor& param, std::int64_t numel, const std::string& place,
              StateDictProblems& problems)
      : dict_(dict), param_(param), numel_(numel), place_(place), problems_(problems) {}

  [[nodiscard]] bool has(const char* name) const { return dict_.contains(name) && !dict_.at(name).is_null(); }
  double number(const char* name) {
    double number = 0;
    read_option(dict_, name, number, place_, problems_);
    return number;
  }
  // Through double, as Python may store counts as floats; counts of steps are far below 2^53.
  std::int64_t count(const char* name) { return static_cast<std::int64_t>(number(name)); }
  // A tensor with as many elements as all parameters together.
  at::Tensor flat(const char* name) { return has(name) ? tensor(dict_.at(name), name, numel_) : missing(name); }
  // Python starts with the number 1 and continues with a tensor.
  at::Tensor scalar(const char* name) {
    if (has(name) && dict_.at(name).is<at::Tensor>()) return tensor(dict_.at(name), name, 1).reshape({});
    return at::scalar_tensor(number(name), param_.options());
  }
  // A deque, because LibTorch's state removes the oldest entry at the front.
  std::deque<at::Tensor> history(const char* name, std::int64_t numel, bool may_lack = false) {
    std::deque<at::Tensor> tensors;
    if (!has(name) || !dict_.at(name).is<Value::List>()) {
      problems_.add(fmt::format("{}.{}: expected a list of tensors, got {}", place_, name,
                                has(name) ? dict_.at(name).type_name() : "nothing"));
      return tensors;
    }
    const auto& list = dict_.at(name).as<Value::List>();
    for (std::size_t index = 0; index < list.size(); ++index) {
      const bool lacks = may_lack && list[index].is_null();
      tensors.push_back(lacks ? at::Tensor() : tensor(list[index], fmt::format("{}[{}]", name, index), numel));
    }
    return tensors;
  }
  void check(bool holds, const std::string& text) {
    // Checks that involve several entries.
    if (!holds) problems_.add(fmt::format("{}.{}", place_, text));
  }

 private:
  at::Tensor missing(const char* name) {
    problems_.add(fmt::format("{}.{}: missing", place_, name));
    return {};
  }
  at::Tensor tensor(const Value& value, const std::string& name, std::int64_t numel) {
    if (!value.is<at::Tensor>() || !value.as<at::Tensor>().defined() || value.as<at::Tensor>().numel() != numel) {
      problems_.add(fmt::format("{}.{}: expected a tensor of {} numbers, as many as {}, got {}", place_, name, numel,
                                numel == 1 ? "it needs" : "all parameters have",
                                value.is<at::Tensor>() && value.as<at::Tensor>().defined()
                                    ? fmt::format("{}", value.as<at::Tensor>().numel())
                                    : value.type_name()));
      return at::zeros({}, param_.options());
    }
    // Always a copy: steps change the tensor, and the saved one belongs to the caller.
    return value.as<at::Tensor>().detach().to(param_.options(), /*non_blocking=*/false, /*copy=*/true);
  }

  const Value::Dict& dict_;
  const at::Tensor& param_;
  std::int64_t numel_;
  const std::string& place_;
  StateDictProblems& problems_;
};

}  // namespace

// LBFGS works on the concatenation of all parameters, whose length bounds every tensor of its state.
LbfgsCodec::LbfgsCodec(const torch::optim::LBFGS& optimizer) : optimizer_(&optimizer), numel_(0) {
  for (const auto& group : optimizer.param_groups()) {
    for (const auto& parameter : group.params()) numel_ += parameter.numel();
  }
}

// The keys of Python's LBFGS, in its param_groups.
Value::Dict LbfgsCodec::write_options(const torch::optim::OptimizerOptions& group) const {
  const auto& options = static_cast<const LBFGSOptions&>(group);
  return {{"lr", options.lr()},
          {"max_iter", options.max_iter()},
          {"max_eval", options.max_eval() ? Value(*options.max_eval()) : Value()},
          {"tolerance_grad", options.tolerance_grad()},
          {"tolerance_change", options.tolerance_change()},
          {"history_size", options.history_size()},
          {"line_search_fn", options.line_search_fn() ? Value(*options.line_search_fn()) : Value()}};
}

Value::Dict LbfgsCodec::write_state(const torch::optim::OptimizerParamState& of_first) const {
  const auto& state = static_cast<const LBFGSParamState&>(of_first);
  Value::Dict dict{{"func_evals", state.func_evals()}, {"n_iter", state.n_iter()}};
  if (!state.d().defined()) return dict;  // the first gradient was already below the tolerance
  dict.insert({{"d", state.d()},
               {"t", state.t()},
               {"old_dirs", list_of(state.old_dirs())},
               {"old_stps", list_of(state.old_stps())},
               {"ro", list_of(state.ro())},
               {"H_diag", state.H_diag()},
               {"prev_flat_grad", state.prev_flat_grad()},
               {"prev_loss", state.prev_loss()}});
  // `al` has a slot per history entry; slots that were never used are null.
  if (state.al()) dict["al"] = list_of(*state.al());
  return dict;
}

std::unique_ptr<torch::optim::OptimizerOptions> LbfgsCodec::read_options(const Value::Dict& dict,
                                                                         const torch::optim::OptimizerOptions& now,
                                                                         const std::string& place,
                                                                         StateDictProblems& problems) const {
  auto options = std::make_unique<LBFGSOptions>(static_cast<const LBFGSOptions&>(now));
  const auto number = [&](const char* name) {
    double number = 0;
    read_option(dict, name, number, place, problems);
    return number;
  };
  const auto count = [&](const char* name) { return static_cast<std::int64_t>(number(name)); };
  // Problems are collected by read_option; the group is only used if there are none.
  options->lr(number("lr")).max_iter(count("max_iter")).max_eval(count("max_eval"));
  options->tolerance_grad(number("tolerance_grad"))
      .tolerance_change(number("tolerance_change"))
      .history_size(count("history_size"));
  const auto search = dict.find("line_search_fn");
  if (search == dict.end() || search->second.is_null()) {
    options->line_search_fn(std::nullopt);
  } else if (search->second.is<std::string>() && search->second.as<std::string>() == "strong_wolfe") {
    options->line_search_fn("strong_wolfe");
  } else {
    problems.add(
        fmt::format("{}.line_search_fn: expected null or strong_wolfe, got {}", place,
                    search->second.is<std::string>() ? search->second.as<std::string>() : search->second.type_name()));
  }
  return options;
}

std::unique_ptr<torch::optim::OptimizerParamState> LbfgsCodec::read_state(
    const Value::Dict& dict, const at::Tensor& param, const torch::optim::OptimizerOptions& /*options*/,
    const std::string& place, StateDictProblems& problems) const {
  auto state = std::make_unique<LBFGSParamState>();
  StateReader reader(dict, param, numel_, place, problems);
  reader.check(param.is_same(optimizer_->parameters().front()),
               "LBFGS stores its state under its first parameter only");
  state->func_evals(reader.count("func_evals")).n_iter(reader.count("n_iter"));
  // All of the entries below exist together, from the first direction on.
  if (!reader.has("d")) return state;
  state->d(reader.flat("d"))
      .t(reader.number("t"))
      .prev_loss(reader.number("prev_loss"))
      .prev_flat_grad(reader.flat("prev_flat_grad"))
      .H_diag(reader.scalar("H_diag"));
  state->old_dirs(reader.history("old_dirs", numel_))
      .old_stps(reader.history("old_stps", numel_))
      .ro(reader.history("ro", 1));
  const auto length = state->old_dirs().size();
  reader.check(state->old_stps().size() == length && state->ro().size() == length,
               fmt::format("old_dirs: expected as many as in old_stps and ro, got {}, {} and {}", length,
                           state->old_stps().size(), state->ro().size()));
  if (!reader.has("al")) return state;
  const auto al = reader.history("al", 1, /*may_lack=*/true);
  // Longer is fine: LibTorch allocates history_size slots at once.
  reader.check(al.size() >= length, "al: expected at least as many as in old_dirs");
  state->al(std::vector<at::Tensor>(al.begin(), al.end()));
  return state;
}

}  // namespace accel::optim
