#include "reference/accelerator/accelerator.hpp"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <exception>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/clip.hpp"

namespace accel {
namespace {

// Options with the environment's values in their place. All problems in one message.
AcceleratorOptions resolved(AcceleratorOptions options) {
  std::vector<std::string> problems;
  const auto precision = options.mixed_precision ? options.mixed_precision : environment("ACCELERATE_MIXED_PRECISION");
  options.mixed_precision = precision.value_or("no");
  if (*options.mixed_precision == "fp16" || *options.mixed_precision == "fp8") {
    problems.push_back(fmt::format("mixed_precision: '{}' is not built yet; use 'no' or 'bf16'", *options.mixed_precision));
  } else if (*options.mixed_precision != "no" && *options.mixed_precision != "bf16") {
    problems.push_back(fmt::format("mixed_precision: expected 'no' or 'bf16', got '{}'", *options.mixed_precision));
  }

  GradientAccumulationPlugin plugin;
  if (options.gradient_accumulation_plugin) {
    if (options.gradient_accumulation_steps != 1) {
      problems.emplace_back("gradient_accumulation_steps and gradient_accumulation_plugin exclude each other; give the plugin's num_steps");
    }
    plugin = *options.gradient_accumulation_plugin;
  } else {
    plugin.num_steps = options.gradient_accumulation_steps;
    try {
      if (const auto steps = environment_int({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS"})) plugin.num_steps = steps;
    } catch (const ConfigError& error) {
      problems.emplace_back(error.what());
    }
  }
  if (plugin.num_steps.value_or(1) < 1) problems.push_back(fmt::format("gradient_accumulation_steps: expected 1 or more, got {}", *plugin.num_steps));
  options.gradient_accumulation_plugin = plugin;

  if (options.split_batches) options.dataloader_config.split_batches = *options.split_batches;
  if (options.dataloader_config.dispatch_batches.value_or(false) && !options.device_placement) {
    problems.emplace_back("dispatch_batches: true needs device_placement: true, since batches travel over the devices");
  }
  if (options.dataloader_config.use_stateful_dataloader) problems.emplace_back("use_stateful_dataloader: true is not built yet");
  check_config(problems.empty(), "Accelerator: {}", fmt::join(problems, "; "));
  return options;
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : Accelerator(std::move(options), current_rank()) {}

Accelerator::Accelerator(AcceleratorOptions options, RankContext& context)
    : options_(resolved(std::move(options))), context_(&context), mixed_precision_(*options_.mixed_precision) {
  context_->gradient_state.plugin = *options_.gradient_accumulation_plugin;
  context_->gradient_state.sync_gradients = true;
}

DistributedType Accelerator::distributed_type() const {
  if (context_->backend == "none") return DistributedType::kNo;
  return context_->device.is_cpu() ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
}

int Accelerator::gradient_accumulation_steps() const { return context_->gradient_state.plugin.num_steps.value_or(1); }

void Accelerator::set_gradient_accumulation_steps(int steps) {
  check_argument(steps >= 1, "gradient_accumulation_steps: expected 1 or more, got {}", steps);
  context_->gradient_state.plugin.num_steps = steps;
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(optimizers_.begin(), optimizers_.end(), [](const auto& optimizer) { return optimizer.step_was_skipped(); });
}

AcceleratedOptimizer Accelerator::prepare_optimizer(torch::optim::Optimizer& optimizer) {
  return optimizers_.emplace_back(optimizer, *context_);
}

AcceleratedScheduler Accelerator::prepare_scheduler(LRScheduler& scheduler) {
  return AcceleratedScheduler(scheduler, *context_,
                              {.step_with_optimizer = options_.step_scheduler_with_optimizer, .split_batches = split_batches()});
}

std::optional<Autocast::Options> Accelerator::autocast_options() const {
  if (mixed_precision_ == "no") return std::nullopt;
  return Autocast::Options{.device = context_->device.type(), .dtype = at::kBFloat16};
}

std::unique_ptr<Autocast> Accelerator::autocast() const {
  const auto options = autocast_options();
  return options ? std::make_unique<Autocast>(*options) : nullptr;
}

std::shared_ptr<ModelWrapper> Accelerator::wrap_model(ModelTensors tensors, bool evaluation_mode) {
  auto wrapper = std::make_shared<ModelWrapper>();
  wrapper->autocast = autocast_options();
  // As in Accelerate: among CPU ranks always, a group of one included; on GPUs only with more than one.
  const bool parallel = distributed_type() == DistributedType::kMultiCpu || use_distributed();
  if (parallel && !evaluation_mode) {
    wrapper->ddp = std::make_unique<DistributedDataParallel>(std::move(tensors), context_->world, options_.ddp_kwargs);
  }
  return wrapper;
}

ShardOptions Accelerator::shard_options() const {
  return {.context = context_, .config = options_.dataloader_config, .rng_types = options_.rng_types, .put_on_device = options_.device_placement};
}

void Accelerator::backward(const at::Tensor& loss, BackwardOptions options) {
  const int steps = gradient_accumulation_steps();
  const auto scaled = steps == 1 ? loss : loss.div(steps);
  torch::autograd::backward(std::vector<at::Tensor>{scaled}, std::vector<at::Tensor>{}, options.retain_graph, options.create_graph);
}

Accelerator::Window::~Window() {
  for (auto& [wrapper, value] : restore_) wrapper->ddp->require_backward_grad_sync = value;
}

Accelerator::Window Accelerator::suspend_sync(std::vector<std::shared_ptr<ModelWrapper>> models) {
  Window window;
  for (auto& wrapper : models) {
    if (!wrapper->ddp) continue;
    window.restore_.emplace_back(wrapper, std::exchange(wrapper->ddp->require_backward_grad_sync, false));
  }
  return window;
}

Accelerator::Window Accelerator::begin_micro_batch(std::vector<std::shared_ptr<ModelWrapper>> models) {
  auto& state = context_->gradient_state;
  if (state.plugin.sync_with_dataloader && state.end_of_dataloader()) {
    step_ = 0;
    state.sync_gradients = true;
  } else {
    ++step_;
    state.sync_gradients = step_ % gradient_accumulation_steps() == 0;
  }
  const bool communicate = state.sync_gradients || (use_distributed() && state.plugin.sync_each_batch);
  return communicate ? Window() : suspend_sync(std::move(models));
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  return clip_grad_norm(parameters, max_norm, norm_type);
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  clip_grad_value(parameters, clip_value);
}

Accelerator::MetricRows Accelerator::metric_rows() const {
  const auto& state = context_->gradient_state;
  const bool holds_duplicates = use_distributed() && state.end_of_dataloader() && state.remainder() > 0;
  if (!holds_duplicates) return {};
  return {.of_this_rank = state.num_rows(), .of_all_ranks = state.remainder()};
}

void Accelerator::MetricRows::check(bool fits, std::optional<std::int64_t> rows) {
  check_argument(fits, "gather_for_metrics: the last step holds duplicates, and a value of {} rows, which are not as many as the batch has samples, "
                 "cannot be cut; gather one row per sample and reduce afterwards", rows ? fmt::format("{}", *rows) : "no");
}

void Accelerator::print_line(const std::string& line) const { context_->print(line + "\n"); }

Accelerator::MainFirst::MainFirst(const Group& world, bool is_main)
    : world_(world), is_main_(is_main), uncaught_(std::uncaught_exceptions()) {
  if (!is_main_) world_.barrier();
}

Accelerator::MainFirst::~MainFirst() noexcept(false) {
  // A rank that throws does not wait for the others: they learn of it by the group's error.
  if (is_main_ && std::uncaught_exceptions() == uncaught_) world_.barrier();
}

}  // namespace accel
