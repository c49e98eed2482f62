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
  for (auto& problem : problems_of(options.dataloader_config)) problems.push_back(std::move(problem));
  check_config(problems.empty(), "Accelerator: {}", fmt::join(problems, "; "));
  return options;
}

// Every rank makes every group, in one order.
DataParallel data_parallel_of(RankContext& context, const std::optional<ParallelismConfig>& config) {
  if (!config || config->non_data_parallel_size() == 1) return {.size = context.world_size, .rank = context.rank, .group = context.world};
  const int size = config->data_parallel_size(), stride = config->non_data_parallel_size();
  DataParallel data_parallel{.size = size, .rank = context.rank / stride};
  for (int peer = 0; peer < stride; ++peer) {
    std::vector<int> ranks;
    for (int rank = 0; rank < size; ++rank) ranks.push_back(rank * stride + peer);
    auto group = context.new_group(ranks);
    if (context.rank % stride == peer) data_parallel.group = std::move(group);
  }
  return data_parallel;
}

void check_mesh(const ParallelismConfig& mesh, int world_size) {
  std::vector<std::string> problems;
  const auto check_size = [&](const char* name, int size) {
    if (size < 1) problems.push_back(fmt::format("{}: expected 1 or more, got {}", name, size));
  };
  check_size("dp_replicate_size", mesh.dp_replicate_size);
  check_size("dp_shard_size", mesh.dp_shard_size);
  check_size("cp_size", mesh.cp_size);
  check_size("sp_size", mesh.sp_size);
  check_size("tp_size", mesh.tp_size);
  const auto size = std::int64_t{mesh.data_parallel_size()} * mesh.non_data_parallel_size();
  if (problems.empty() && size != world_size) {
    problems.push_back(fmt::format("a mesh of {} x {} x {} x {} x {} = {} ranks (dp_replicate, dp_shard, cp, sp, tp), and there are {}", mesh.dp_replicate_size,
                                   mesh.dp_shard_size, mesh.cp_size, mesh.sp_size, mesh.tp_size, size, world_size));
  }
  if (mesh.cp_size > 1 && mesh.sp_size > 1) problems.emplace_back("cp_size and sp_size exclude each other");
  check_config(problems.empty(), "parallelism_config: {}", fmt::join(problems, "; "));
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : Accelerator(std::move(options), current_rank()) {}

Accelerator::Accelerator(AcceleratorOptions options, RankContext& context)
    : options_(resolved(std::move(options))), context_(&context), mixed_precision_(*options_.mixed_precision) {
  if (options_.parallelism_config) check_mesh(*options_.parallelism_config, context_->world_size);
  context_->gradient_state.plugin = *options_.gradient_accumulation_plugin;
  context_->gradient_state.sync_gradients = true;
  data_parallel_ = data_parallel_of(*context_, options_.parallelism_config);
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
  wrapper->listener = context_->listener;
  // As in Accelerate: among CPU ranks always, a group of one included; on GPUs only with more than one.
  const bool parallel = distributed_type() == DistributedType::kMultiCpu || use_distributed();
  if (parallel && !evaluation_mode) {
    wrapper->ddp = std::make_unique<DistributedDataParallel>(std::move(tensors), context_->world, options_.ddp_kwargs, context_->listener);
  }
  return wrapper;
}

ShardOptions Accelerator::shard_options() const {
  return {.context = context_, .data_parallel = data_parallel_, .config = options_.dataloader_config, .rng_types = options_.rng_types,
          .put_on_device = options_.device_placement};
}

void Accelerator::backward(const at::Tensor& loss, BackwardOptions options, std::source_location where) {
  const CallSite site(where);
  const PhaseScope phase(context_->listener.get(), "backward");
  if (context_->listener) context_->listener->begin_backward();
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

void Accelerator::join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options, const std::function<void()>& body,
                                     std::source_location where) {
  // Loaders as they were, however the body ends.
  struct Restore {
    std::vector<std::pair<std::shared_ptr<LoaderCore>, bool>> loaders;
    std::vector<DistributedDataParallel*> joined;
    ~Restore() {
      for (auto* model : joined) model->cancel_join();
      for (auto& [loader, even_batches] : loaders) loader->set_even_batches(even_batches);
    }
  } restore;
  if (options.even_batches) {
    for (const auto& weak : loaders_) {
      auto loader = weak.lock();
      if (!loader || loader->is_dispatched()) continue;
      restore.loaders.emplace_back(loader, loader->even_batches());
      loader->set_even_batches(*options.even_batches);
    }
  }
  if (!options.even_batches.value_or(even_batches())) {
    for (const auto& model : models) {
      if (model.wrapper_->ddp) restore.joined.push_back(model.wrapper_->ddp.get());
    }
  }
  for (auto* model : restore.joined) model->begin_join(/*notifies=*/model == restore.joined.front());
  body();
  if (restore.joined.empty()) return;
  const CallSite site(where);
  for (auto* model : restore.joined) model->end_join();
  bool is_last = true;
  while (restore.joined.front()->num_taking_part() > 0) {
    is_last = false;
    for (auto* model : restore.joined) model->shadow_step();
  }
  for (auto* model : restore.joined) model->sync_final_model(is_last);
  if (context_->listener) context_->listener->end_join();
}

Accelerator::MetricRows Accelerator::metric_rows() const {
  const auto& state = context_->gradient_state;
  const auto own = state.num_rows().value_or(0);
  MetricRows rows;
  if (const auto real = state.real_rows(); !real.empty()) {
    for (std::size_t rank = 0; rank < real.size(); ++rank) {
      const auto begin = static_cast<std::int64_t>(rank) * own;
      rows.kept.push_back({.begin = begin, .end = begin + real[rank]});
    }
  } else if (state.end_of_dataloader() && state.remainder() > 0 && (data_parallel_.size > 1 || own != state.remainder())) {
    rows.kept = {{.begin = 0, .end = state.remainder()}};
  }
  if (!rows.kept.empty()) rows.of_this_rank = own;
  return rows;
}

at::Tensor Accelerator::MetricRows::cut(const at::Tensor& gathered) const {
  if (!of_this_rank) return gathered;
  std::vector<at::Tensor> rows;
  for (const auto& range : kept) rows.push_back(slice_rows(gathered, range));
  return rows.size() == 1 ? rows.front() : concatenate(rows);
}

void Accelerator::MetricRows::check(bool fits, std::optional<std::int64_t> rows) {
  check_argument(fits, "gather_for_metrics: the last step holds duplicates, and a value of {} rows, which are not as many as the batch has samples, "
                 "cannot be cut; gather one row per sample and reduce afterwards", rows ? fmt::format("{}", *rows) : "no");
}

void Accelerator::print_line(const std::string& line) const { context_->print(line + "\n"); }

Accelerator::MainFirst::MainFirst(const Group& world, bool is_main, std::source_location where)
    : world_(world), is_main_(is_main), where_(where), uncaught_(std::uncaught_exceptions()) {
  if (!is_main_) world_.barrier(where_);
}

Accelerator::MainFirst::~MainFirst() noexcept(false) {
  // A rank that throws does not wait for the others: they learn of it by the group's error.
  if (is_main_ && std::uncaught_exceptions() == uncaught_) world_.barrier(where_);
}

}  // namespace accel
