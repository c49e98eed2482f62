#include "reference/accelerator/captured_step.hpp"

#include <ATen/ops/full.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/prepared/parameter_layouts.hpp"

namespace accel::detail {
namespace {

optim::OptimizerWithStateDict* capturable(const AcceleratedOptimizer& optimizer) {
  auto* ours = dynamic_cast<optim::OptimizerWithStateDict*>(&optimizer.optimizer());
  return ours != nullptr && ours->is_capturable() ? ours : nullptr;
}

std::vector<int> step_counts(const TrainingState& training) {
  std::vector<int> counts;
  for (const auto& schedule : training.schedulers) counts.push_back(schedule.scheduler().step_count());
  return counts;
}

}  // namespace

// Reasons why a replay would differ from a call.
std::vector<std::string> StepGraph::problems() const {
  std::vector<std::string> problems;
  const auto refuse = [&](bool is_refused, const char* reason) {
    if (is_refused) problems.emplace_back(reason);
  };
  refuse(*options_.mixed_precision == "fp16", "mixed_precision: fp16 adapts its scale; use bf16");
  refuse(context_.gradient_state.plugin.num_steps.value_or(1) > 1,
         "gradient_accumulation_steps above 1: micro-batches of a window differ");
  refuse(options_.gradient_guard.is_on(), "gradient_guard: reads norms on the host");
  refuse(options_.loss_weighting == "exact", "loss_weighting: exact counts items on the host");
  refuse(*options_.debug, "debug: compares shapes on the host");
  refuse(options_.ddp_kwargs.find_unused_parameters, "ddp_kwargs: find_unused_parameters reads which were used");
  refuse(options_.ddp_kwargs.comm_hook.ends_with("power_sgd"), "ddp_kwargs: PowerSGD counts steps on the host");
  refuse(std::any_of(training_.models.begin(), training_.models.end(),
                     [](const auto& model) { return model->is_sharded(); }),
         "sharded models: gathers are decided on the host");
  refuse(std::any_of(training_.models.begin(), training_.models.end(),
                     [](const auto& model) { return model->layouts().has_divided_layers(); }),
         "layers that are divided over ranks: random streams and experts are chosen on the host");
  refuse(training_.path->counts_samples(), "samples_per_step: counts samples on the host");
  refuse(std::any_of(training_.optimizers.begin(), training_.optimizers.end(),
                     [](const auto& optimizer) { return capturable(optimizer) == nullptr; }),
         "an optimizer is not a fused SGD, Adam or AdamW of accel::optim");
  return problems;
}

void StepGraph::check_can_be_captured() const {
  const auto found = problems();
  check_state(found.empty(), "capture_step: the step cannot be captured: {}", fmt::join(found, "; "));
}

bool StepGraph::warms_up() {
  if (num_calls_ == 0) {
    check_can_be_captured();
    check_argument(warm_up_steps_ >= 1, "capture_step: warm_up_steps: expected 1 or more, got {}", warm_up_steps_);
  }
  if (graph_ != nullptr && addresses() != addresses_) {
    graph_.reset();
    num_calls_ = 0;
    return warms_up();
  }
  if (num_calls_ == warm_up_steps_) return false;
  ++num_calls_;
  return true;
}

at::Tensor StepGraph::slot_of(const at::Tensor& input) const {
  return input.detach().to(context_.device, input.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
}

StepGraph::Rates StepGraph::make_rates() const {
  Rates rates;
  for (const auto& optimizer : training_.optimizers) {
    auto& of_groups = rates.emplace_back();
    for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
      const auto options = at::TensorOptions(context_.device).dtype(at::kFloat);
      of_groups.push_back({.tensor = at::full({}, optimizer.lr(group), options), .value = optimizer.lr(group)});
    }
  }
  return rates;
}

// Gradients that exist would be added to in every replay; without them each replay writes its own.
void StepGraph::capture(const std::function<void()>& function) {
  check_can_be_captured();
  auto rates = make_rates();
  for (std::size_t i = 0; i < rates.size(); ++i) {
    std::vector<at::Tensor> tensors;
    for (const auto& rate : rates[i]) tensors.push_back(rate.tensor);
    capturable(training_.optimizers[i])->read_lr_from(std::move(tensors));
    training_.optimizers[i].zero_grad();
  }
  const auto before = step_counts(training_);
  std::unique_ptr<DeviceGraph> graph;
  try {
    graph = context_.capture_graph(function);
  } catch (...) {
    read_rates_from_options();
    throw;
  }
  read_rates_from_options();
  check_state(before == step_counts(training_),
              "capture_step: the function steps a schedule, which would not happen in replays; step it after the call");
  graph_ = std::move(graph);
  rates_ = std::move(rates);
  addresses_ = addresses();
}

// For steps outside of the graph.
void StepGraph::read_rates_from_options() {
  for (auto& optimizer : training_.optimizers) capturable(optimizer)->read_lr_from({});
}

void StepGraph::replay(const std::vector<at::Tensor>& slots, const std::vector<at::Tensor>& inputs) {
  check_argument(slots.size() == inputs.size(), "capture_step: got {} input tensors; expected {}, as in the capture",
                 inputs.size(), slots.size());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    check_argument(slots[i].sizes() == inputs[i].sizes() && slots[i].scalar_type() == inputs[i].scalar_type(),
                   "capture_step: input tensor {} has shape [{}] and dtype {}; expected [{}] and {}, as in the "
                   "capture; set drop_last to leave out a short batch",
                   i, fmt::join(inputs[i].sizes(), ", "), c10::toString(inputs[i].scalar_type()),
                   fmt::join(slots[i].sizes(), ", "), c10::toString(slots[i].scalar_type()));
  }
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i].copy_(inputs[i].detach(), /*non_blocking=*/true);
  update_rates();
  graph_->replay();
}

void StepGraph::update_rates() {
  for (std::size_t optimizer = 0; optimizer < rates_.size(); ++optimizer) {
    for (std::size_t group = 0; group < rates_[optimizer].size(); ++group) {
      auto& rate = rates_[optimizer][group];
      const auto now = training_.optimizers[optimizer].lr(group);
      if (std::exchange(rate.value, now) != now) rate.tensor.fill_(now);
    }
  }
}

std::vector<const void*> StepGraph::addresses() const {
  std::vector<const void*> addresses;
  const auto add = [&](const at::Tensor& tensor) {
    if (tensor.defined()) addresses.push_back(tensor.const_data_ptr());
  };
  for (const auto& optimizer : training_.optimizers) {
    for (const auto& parameter : optim::parameters_of(optimizer.optimizer())) {
      add(parameter);
      const auto found = optimizer.optimizer().state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.optimizer().state().end()) continue;
      for (const auto& tensor : static_cast<const optim::ParamState&>(*found->second).tensors) add(tensor);
    }
  }
  return addresses;
}

}  // namespace accel::detail
