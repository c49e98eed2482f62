#include "reference/precision/grad_scaler.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/named_tensors.hpp"

namespace accel {
namespace {

// Gradients by device and dtype: one multi-tensor kernel handles each group.
using GradientGroups = std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>>;

GradientGroups gradients_of(torch::optim::Optimizer& optimizer) {
  GradientGroups groups;
  for (auto& group : optimizer.param_groups()) {
    // A parameter listed twice would otherwise be unscaled twice.
    for (const auto& parameter : unique_tensors(group.params())) {
      auto gradient = parameter.grad();
      if (!gradient.defined()) continue;
      check_argument(gradient.scalar_type() != at::kHalf,
                     "GradScaler: float16 gradients cannot be unscaled without loss; keep parameters in float32 "
                     "and run the forward under autocast");
      // Only the stored values can be infinite; indices need no scaling.
      if (gradient.is_sparse()) gradient = gradient._values();
      groups[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient);
    }
  }
  return groups;
}

// Asynchronous, except to the host, whose next instruction may read the copy.
at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

}  // namespace

GradScaler::GradScaler(GradScalerKwargs options) : options_(options) {
  const auto problems = problems_of(options);
  check_argument(problems.empty(), "GradScaler: {}", listed(problems, "; "));
}

// Created on first use, because only the first loss determines the device.
void GradScaler::make_tensors(c10::Device device) {
  if (scale_.defined()) return;
  scale_ = at::full({}, options_.init_scale, at::TensorOptions(device).dtype(at::kFloat));
  growth_tracker_ = at::full({}, init_growth_tracker_, at::TensorOptions(device).dtype(at::kInt));
}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!is_enabled()) return outputs;
  make_tensors(outputs.device());
  // A model on several devices can have outputs on each of them; the scale itself stays on the first.
  return outputs * moved(scale_, outputs.device());
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const auto& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

// The scale exists only after the first scaled loss; before, gradients cannot be scaled ones.
void GradScaler::check_scaled(const char* call) const {
  check_state(scale_.defined(),
              "GradScaler: {} was called before any loss was scaled; call scale(loss).backward() first", call);
}

GradScaler::Stage GradScaler::stage_of(const torch::optim::Optimizer& optimizer) const {
  const auto found = optimizers_.find(&optimizer);
  return found == optimizers_.end() ? Stage::kReady : found->second.stage;
}

bool GradScaler::was_unscaled(const torch::optim::Optimizer& optimizer) const {
  return stage_of(optimizer) == Stage::kUnscaled;
}
bool GradScaler::was_stepped(const torch::optim::Optimizer& optimizer) const {
  return stage_of(optimizer) == Stage::kStepped;
}

std::vector<at::Tensor> GradScaler::unscale_gradients(torch::optim::Optimizer& optimizer) {
  const c10::NoGradGuard no_grad;
  // The reciprocal is computed in float64, as in Python: a float32 division is not exact under all compiler options.
  const auto inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  std::map<std::string, at::Tensor> found_inf;
  for (auto& [place, gradients] : gradients_of(optimizer)) {
    const auto device = gradients.front().device();
    auto& found =
        found_inf.try_emplace(place.first, at::zeros({}, at::TensorOptions(device).dtype(at::kFloat))).first->second;
    at::_amp_foreach_non_finite_check_and_unscale_(gradients, found, moved(inverse, device));
  }
  std::vector<at::Tensor> of_devices;
  for (auto& [device, found] : found_inf) of_devices.push_back(found);
  return of_devices;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  check_scaled("unscale_");
  check_state(!was_unscaled(optimizer),
              "GradScaler: unscale_ was already called on this optimizer since the last update; clip and unscale once "
              "per step, when gradients are synchronized");
  check_state(!was_stepped(optimizer), "GradScaler: unscale_ was called after step; call update first");
  optimizers_[&optimizer] = {.stage = Stage::kUnscaled, .found_inf = unscale_gradients(optimizer)};
}

void GradScaler::share_found_inf(torch::optim::Optimizer& optimizer, const Group& group) {
  if (!is_enabled()) return;
  // Without this, ranks with sharded gradients could disagree on whether to skip the step, and their weights would
  // diverge.
  auto& all = optimizers_.at(&optimizer).found_inf;
  // A stage of a pipeline may have no gradients, and takes part all the same.
  if (all.empty()) all.push_back(at::zeros({}, at::TensorOptions(scale_.device()).dtype(at::kFloat)));
  for (auto& found : all) group.all_reduce(found, ReduceOp::kMax).wait();
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) {
    optimizer.step();
    return true;
  }
  const auto found_inf = begin_step(optimizer);
  // Waits for the device: whether to skip is decided on the host, as in Python.
  const bool is_finite =
      std::all_of(found_inf.begin(), found_inf.end(), [](const at::Tensor& found) { return found.item<float>() == 0; });
  if (is_finite) optimizer.step();
  return is_finite;
}

std::vector<at::Tensor> GradScaler::begin_step(torch::optim::Optimizer& optimizer) {
  check_scaled("step");
  check_state(!was_stepped(optimizer),
              "GradScaler: step was already called on this optimizer since the last update; call update first");
  // The user may have unscaled before, to clip; gradients must not be divided twice.
  if (!was_unscaled(optimizer)) unscale_(optimizer);
  auto& state = optimizers_.at(&optimizer);
  check_state(!state.found_inf.empty(),
              "GradScaler: no parameter of the optimizer has a gradient; call scale(loss).backward() before step");
  state.stage = Stage::kStepped;
  return state.found_inf;
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!is_enabled()) return;
  check_scaled("update");
  if (new_scale) {
    scale_.fill_(*new_scale);
  } else {
    at::Tensor found_inf;
    for (const auto& [optimizer, state] : optimizers_) {
      for (const auto& found : state.found_inf) {
        const auto here = moved(found, scale_.device());
        found_inf = found_inf.defined() ? found_inf + here : here;
      }
    }
    check_state(found_inf.defined(),
                "GradScaler: update was called before any optimizer was unscaled or stepped; call step first");
    // Runs on the device without synchronization. `found_inf` is a count over all optimizers and devices, so one
    // overflow lowers the scale of all.
    at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                           options_.growth_interval);
  }
  // Ends the iteration for all optimizers: each may unscale and step again.
  optimizers_.clear();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.defined() ? scale_.item<double>() : options_.init_scale;
}

std::int64_t GradScaler::growth_tracker() const {
  return growth_tracker_.defined() ? growth_tracker_.item<int>() : init_growth_tracker_;
}

Value GradScaler::state_dict() const {
  if (!is_enabled()) return Value::Dict{};
  return Value::Dict{{"scale", get_scale()},
                     {"growth_factor", options_.growth_factor},
                     {"backoff_factor", options_.backoff_factor},
                     {"growth_interval", options_.growth_interval},
                     {"_growth_tracker", growth_tracker()}};
}

void GradScaler::load_state_dict(const Value& state) {
  if (!is_enabled()) return;
  std::vector<std::string> problems;
  auto loaded = options_;
  std::int64_t tracker = 0, interval = 0;
  // Every key is read before anything is decided, so that one message lists all problems.
  const auto read = [&]<typename T>(const char* key, T& target) {
    if (!state.contains(key)) {
      problems.push_back(fmt::format("{}: missing", key));
    } else if (const auto& found = state.at(key); found.is<T>()) {
      target = found.as<T>();
    } else if (std::is_same_v<T, double> && found.is<std::int64_t>()) {
      target = static_cast<T>(found.as<std::int64_t>());  // as in Python
    } else {
      problems.push_back(fmt::format("{}: expected {}, got {}", key, Value(T()).type_name(), found.type_name()));
    }
  };
  read("scale", loaded.init_scale);
  read("growth_factor", loaded.growth_factor);
  read("backoff_factor", loaded.backoff_factor);
  read("growth_interval", interval);
  read("_growth_tracker", tracker);
  loaded.growth_interval = static_cast<int>(interval);
  // A run can legitimately reach a scale of 0, which the options do not allow as an initial value.
  if (problems.empty() && loaded.init_scale != 0) problems = problems_of(loaded);
  if (problems.empty() && tracker < 0)
    problems.push_back(fmt::format("_growth_tracker: expected 0 or more, got {}", tracker));
  if (!problems.empty())
    throw CheckpointError(fmt::format(
        "the state does not fit an enabled GradScaler: {}; load the state of an enabled one", listed(problems, "; ")));
  // Nothing above changed the scaler, so that a state that does not fit leaves it unchanged.
  options_ = loaded;
  init_growth_tracker_ = static_cast<int>(tracker);
  if (!scale_.defined()) return;
  scale_.fill_(loaded.init_scale);
  growth_tracker_.fill_(tracker);
}

std::vector<at::Tensor> GradScaler::state_tensors(c10::Device device) {
  if (!is_enabled()) return {};
  make_tensors(device);
  return {scale_, growth_tracker_};
}

}  // namespace accel
