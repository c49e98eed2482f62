#include "reference/accelerator/accelerator.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <set>

#include "reference/accelerator/options_check.hpp"
#include "reference/config/deepspeed_file.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/parallel/same_model.hpp"
#include "reference/sharded/file_memory.hpp"

namespace accel {
namespace {

// Every rank makes every group, in one order. Ranks that share a batch by tensor parallelism hold other slices: each
// shards with those in its place of the others. Those that share it by parts of its sequence shard together, and
// average.
sharded::ShardGroups make_shard_groups(RankContext& context, const std::optional<ParallelismConfig>& config,
                                       bool hybrid) {
  if (context.world_size == 1 && !context.new_group) return {};
  const auto mesh = config.value_or(ParallelismConfig{.dp_shard_size = context.world_size});
  const int of_sequence = mesh.cp_size * mesh.sp_size, stride = mesh.tp_size,
            size = mesh.data_parallel_size() * of_sequence;
  const bool mesh_says = config && (mesh.dp_replicate_size > 1 || mesh.dp_shard_size > 1 || of_sequence > 1);
  const int of_machine = std::max(1, context.local_world_size / stride);
  const int shards = mesh_says ? mesh.dp_shard_size * of_sequence : hybrid ? of_machine : size;
  check_config(size % shards == 0, "fsdp_plugin: {} ranks cannot be sharded over {} each", size, shards);
  sharded::ShardGroups groups{.peer = context.rank % stride};
  for (int peer = 0; peer < stride; ++peer) {
    const auto member = [&](const std::vector<int>& ranks, Group& group) {
      auto made = context.new_group(ranks);
      if (std::find(ranks.begin(), ranks.end(), context.rank) != ranks.end()) group = std::move(made);
    };
    for (int first = 0; first < size; first += shards) {
      std::vector<int> ranks;
      for (int shard = 0; shard < shards; ++shard) ranks.push_back((first + shard) * stride + peer);
      member(ranks, groups.gathers);
      member(ranks, groups.reductions);
    }
    for (int shard = 0; shard < shards && shards < size; ++shard) {
      std::vector<int> ranks;
      for (int first = 0; first < size; first += shards) ranks.push_back((first + shard) * stride + peer);
      Group replicas;
      member(ranks, replicas);
      if (replicas.size() > 1) groups.replicas = std::move(replicas);
    }
  }
  return groups;
}

DataParallel data_parallel_of(RankContext& context, const std::optional<ParallelismConfig>& config) {
  if (!config || config->non_data_parallel_size() == 1)
    return {.size = context.world_size, .rank = context.rank, .group = context.world};
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

// State of whole parameters fits no shard.
void check_can_be_sharded(const torch::optim::Optimizer& optimizer) {
  check_state(dynamic_cast<const torch::optim::LBFGS*>(&optimizer) == nullptr,
              "prepare: LBFGS, with a model that is sharded: its products go over all parameters, and a rank has parts "
              "of them");
  check_state(
      !optim::has_stepped(optimizer),
      "prepare: an optimizer that has stepped, with a model that is sharded; prepare both before its first step");
}

bool trains_one_of(const torch::optim::Optimizer& optimizer, const NamedTensors& tensors) {
  const auto trained = optim::parameters_of(optimizer);
  return std::any_of(tensors.begin(), tensors.end(), [&](const auto& item) {
    return std::any_of(trained.begin(), trained.end(),
                       [&](const auto& parameter) { return parameter.is_same(item.second); });
  });
}

std::vector<at::Tensor> parameters_with_sparse_gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const auto& module : model.modules()) {
    if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse())
      parameters.push_back(embedding->weight);
    if (const auto* bag = module->as<torch::nn::EmbeddingBagImpl>(); bag != nullptr && bag->options.sparse())
      parameters.push_back(bag->weight);
  }
  return parameters;
}

Group group_of_all(RankContext& context) {
  std::vector<int> ranks(context.world_size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return context.new_group(ranks);
}

// A rehearsal stands for any backend, and its hangs end at once.
void apply(const InitProcessGroupKwargs& kwargs, RankContext& context) {
  if (context.backend != "gloo" && context.backend != "nccl") return;
  check_config(
      !kwargs.backend || *kwargs.backend == context.backend,
      "init_process_group_kwargs: backend: the ranks were started over {}, not {}; start them with --backend {}",
      context.backend, kwargs.backend.value_or(""), kwargs.backend.value_or(""));
  if (kwargs.timeout) context.world.process_group()->setTimeout(*kwargs.timeout);
}

}  // namespace

Accelerator::Accelerator(AcceleratorOptions options) : Accelerator(std::move(options), current_rank()) {}

Accelerator::Accelerator(AcceleratorOptions options, RankContext& context) : context_(&context) {
  auto resolved = accel::resolved(std::move(options));
  options_ = std::move(resolved.options);
  plugin_ = std::move(resolved.plugin);
  mixed_precision_ = *options_.mixed_precision;
  if (options_.parallelism_config) check_mesh(*options_.parallelism_config, context_->world_size);
  context_->gradient_state.plugin = *options_.gradient_accumulation_plugin;
  context_->gradient_state.sync_gradients = true;
  checkpointing_ = std::make_shared<Checkpointing>(*context_, options_.project_config);
  const auto& logging_dir = options_.project_config.logging_dir;
  trackers_ = std::make_shared<Trackers>(*context_, options_.log_with,
                                         logging_dir.empty() ? std::nullopt : std::optional(logging_dir));
  data_parallel_ = data_parallel_of(*context_, options_.parallelism_config);
  training_.path = std::make_shared<GradientPath>(*context_, options_, context_->world_size / data_parallel_.size);
  apply(options_.init_process_group_kwargs, *context_);
  tell_of_ignored_keys();
  if (*options_.debug && use_distributed()) debug_group_ = group_of_all(*context_);
}

void Accelerator::select_deepspeed_plugin(const std::string& name) {
  options_.deepspeed_plugin = get_deepspeed_plugin(name);
  plugin_ = resolved_plugin(*options_.deepspeed_plugin, options_);
  if (plugin_.gradient_accumulation_steps) set_gradient_accumulation_steps(*plugin_.gradient_accumulation_steps);
  has_model_of_plugin_ = false;
  tell_of_ignored_keys();
}

const DeepSpeedPlugin& Accelerator::get_deepspeed_plugin(const std::string& name) const {
  const auto found = options_.deepspeed_plugins.find(name);
  std::vector<std::string> names;
  for (const auto& [known, plugin] : options_.deepspeed_plugins) names.push_back(known);
  check_argument(found != options_.deepspeed_plugins.end(), "deepspeed plugin '{}': no such plugin; there are: {}",
                 name, fmt::join(names, ", "));
  return found->second;
}

std::optional<std::string> Accelerator::deepspeed_file() const {
  if (!options_.deepspeed_plugin) return std::nullopt;
  const auto file = options_.deepspeed_plugin->hf_ds_config ? options_.deepspeed_plugin->hf_ds_config
                                                            : environment("ACCELERATE_DEEPSPEED_CONFIG_FILE");
  return file == "none" ? std::nullopt : file;
}

void Accelerator::tell_of_ignored_keys() const {
  const auto file = deepspeed_file();
  if (!file) return;
  const auto keys = keys_without_meaning(*file);
  if (!keys.empty() && is_main_process())
    print_line(fmt::format("{}: without a meaning here: {}", *file, fmt::join(keys, ", ")));
}

DistributedType Accelerator::distributed_type() const {
  if (plugin_.steps_in_backward) return DistributedType::kDeepSpeed;
  if (options_.fsdp_plugin) return DistributedType::kFsdp;
  if (context_->backend == "none") return DistributedType::kNo;
  return context_->device.is_cpu() ? DistributedType::kMultiCpu : DistributedType::kMultiGpu;
}

int Accelerator::gradient_accumulation_steps() const { return context_->gradient_state.plugin.num_steps.value_or(1); }

void Accelerator::set_gradient_accumulation_steps(int steps) {
  check_argument(steps >= 1, "gradient_accumulation_steps: expected 1 or more, got {}", steps);
  context_->gradient_state.plugin.num_steps = steps;
}

bool Accelerator::optimizer_step_was_skipped() const {
  return std::any_of(training_.optimizers.begin(), training_.optimizers.end(),
                     [](const auto& optimizer) { return optimizer.step_was_skipped(); });
}

// What Accelerate refuses too: which of the two would count?
void Accelerator::check_not_in_deepspeed_file(bool is_in_file, const char* what, const char* dummy) const {
  check_config(!is_in_file, "{}: has {}, and the program prepares one too; remove it there, or prepare an accel::{}",
               deepspeed_file().value_or(""), what, dummy);
}

AcceleratedOptimizer Accelerator::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  if (const auto file = deepspeed_file())
    check_not_in_deepspeed_file(optimizer_section(*file).has_value(), "an optimizer", "DummyOptim");
  return add_optimizer(std::move(optimizer));
}

AcceleratedOptimizer Accelerator::prepare_optimizer(const DummyOptim& dummy) {
  return add_optimizer(detail::borrowed(deepspeed_objects_->optimizer_for(dummy, deepspeed_file().value_or(""))));
}

AcceleratedOptimizer Accelerator::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer) {
  // LibTorch's own would step a shared parameter as often as its group names it.
  for (auto& group : optimizer->param_groups()) group.params() = each_once(std::move(group.params()));
  if (shards()) {
    check_can_be_sharded(*optimizer);
    training_.path->restart(*optimizer);
  } else if (options_.device_placement) {
    optim::follow_parameters(*optimizer);
  }
  return training_.optimizers.emplace_back(std::move(optimizer), *context_, training_.path, plugin_.steps_in_backward);
}

AcceleratedScheduler Accelerator::prepare_scheduler(std::shared_ptr<LRScheduler> scheduler,
                                                    PrepareSchedulerOptions options) {
  if (const auto file = deepspeed_file())
    check_not_in_deepspeed_file(scheduler_section(*file).has_value(), "a scheduler", "DummyScheduler");
  return add_scheduler(std::move(scheduler), {.step_with_optimizer = options_.step_scheduler_with_optimizer,
                                              .split_batches = split_batches(),
                                              .samples_per_step = options.samples_per_step});
}

AcceleratedScheduler Accelerator::prepare_scheduler(const DummyScheduler& dummy) {
  auto& scheduler =
      deepspeed_objects_->scheduler_for(dummy, deepspeed_file().value_or(""), split_batches() ? 1 : num_processes());
  return add_scheduler(detail::borrowed(scheduler), {.steps_in_backward = true});
}

AcceleratedScheduler Accelerator::add_scheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerOptions options) {
  auto optimizers = training_.optimizers;
  std::erase_if(optimizers, [&](const auto& optimizer) { return &optimizer.optimizer() != &scheduler->optimizer(); });
  return training_.schedulers.emplace_back(std::move(scheduler), optimizers.empty() ? training_.optimizers : optimizers,
                                           *context_, training_.path, options);
}

std::optional<Autocast::Options> Accelerator::autocast_options(const AutocastKwargs& kwargs) const {
  if (mixed_precision_ == "no") return std::nullopt;
  return Autocast::Options{.device = context_->device.type(),
                           .dtype = mixed_precision_ == "fp16" ? at::kHalf : at::kBFloat16,
                           .enabled = kwargs.enabled,
                           .cache_enabled = kwargs.cache_enabled};
}

std::unique_ptr<Autocast> Accelerator::autocast(AutocastKwargs kwargs) const {
  const auto options = autocast_options(kwargs);
  return options ? std::make_unique<Autocast>(*options) : nullptr;
}

std::shared_ptr<const Float8Layers> Accelerator::float8_layers(const torch::nn::Module& module) const {
  return mixed_precision_ == "fp8" ? std::make_shared<const Float8Layers>(module, *options_.ao_recipe_kwargs) : nullptr;
}

NamedTensors Accelerator::full_state(sharded::ShardedModel& model) const {
  auto state = model.full_state();
  if (!plugin_.saves_16bit_model || mixed_precision_ == "no") return state;
  std::map<const c10::TensorImpl*, at::Tensor> in_16bit;  // a tensor of several names stays one
  for (auto& [name, tensor] : state) {
    if (!tensor.is_floating_point()) continue;
    auto& cast = in_16bit[tensor.unsafeGetTensorImpl()];
    if (!cast.defined()) cast = tensor.to(mixed_precision_ == "fp16" ? at::kHalf : at::kBFloat16);
  }
  for (auto& [name, tensor] : state) {
    if (const auto cast = in_16bit.find(tensor.unsafeGetTensorImpl()); cast != in_16bit.end()) tensor = cast->second;
  }
  return state;
}

void Accelerator::place(torch::nn::Module& module) {
  module.to(context_->device);
  for (const auto& prepared : training_.optimizers) optim::follow_parameters(prepared.optimizer());
}

std::shared_ptr<ModelWrapper> Accelerator::wrap_model(const torch::nn::Module& module, ModelTensors tensors,
                                                      bool evaluation_mode) {
  auto wrapper = std::make_shared<ModelWrapper>();
  wrapper->float8_layers = float8_layers(module);
  wrapper->autocast = autocast_options(options_.autocast_kwargs);
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : tensors.parameters) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  wrapper->listener = context_->listener;
  if (evaluation_mode) return wrapper;
  wrapper->is_trained = true;
  // As in Accelerate: among CPU ranks always, a group of one included; on GPUs only with more than one, and a model
  // that is trained.
  const bool is_parallel = distributed_type() == DistributedType::kMultiCpu || (use_distributed() && !trained.empty());
  training_.path->add_parameters(std::move(trained));
  if (is_parallel) {
    tensors.sparse = parameters_with_sparse_gradients(module);
    wrapper->ddp = std::make_shared<DistributedDataParallel>(std::move(tensors), context_->world, options_.ddp_kwargs,
                                                             context_->listener);
    training_.path->add_replicated(wrapper->ddp);
  }
  return wrapper;
}

std::shared_ptr<ModelWrapper> Accelerator::shard_model(const std::shared_ptr<torch::nn::Module>& module) {
  check_state(!plugin_.steps_in_backward || !std::exchange(has_model_of_plugin_, true),
              "prepare: a second model; DeepSpeed's plugin trains one model for each Accelerator; select another "
              "plugin for another model");
  // Its parts are put back at the end, when a module on the stack may be gone.
  const bool is_borrowed = std::get_deleter<detail::OwnsNothing>(module) != nullptr;
  check_argument(
      !is_borrowed || module->as<torch::nn::SequentialImpl>() == nullptr,
      "prepare: a class on the stack that derives from SequentialImpl cannot be sharded; make it by std::make_shared");
  NamedTensors tensors;
  for (const auto& item : module->named_parameters()) tensors.emplace_back(item.key(), item.value());
  tensors = each_once(std::move(tensors));
  auto optimizers = training_.optimizers;  // prepared before the model
  std::erase_if(optimizers, [&](const auto& optimizer) { return !trains_one_of(optimizer.optimizer(), tensors); });
  for (const auto& optimizer : optimizers) check_can_be_sharded(optimizer.optimizer());
  if (!shard_groups_)
    shard_groups_ = make_shard_groups(*context_, options_.parallelism_config, plugin_.sharding->hybrid);
  check_same_model(context_->world, tensors);
  auto wrapper = std::make_shared<ModelWrapper>();
  wrapper->float8_layers = float8_layers(*module);
  if (plugin_.sharding->autocasts) wrapper->autocast = autocast_options(options_.autocast_kwargs);
  wrapper->listener = context_->listener;
  // Optimizers keep float32, and units compute in lower precision, as in Accelerate.
  for (auto& [name, parameter] : tensors) {
    const bool is_low = parameter.is_floating_point() && parameter.element_size() < 4;
    if (mixed_precision_ != "no" && parameter.requires_grad() && is_low)
      parameter.set_data(parameter.detach().to(at::kFloat));
  }
  wrapper->is_trained = true;
  context_->hint =
      "outside model(...) the parameters of a sharded model are this rank's parts; keep `const auto whole = "
      "accelerator.gathered_parameters(model);` alive, on every rank, "
      "around other members that compute with them, such as model->generate(...)";
  wrapper->sharded =
      std::make_shared<sharded::ShardedModel>(module, *shard_groups_, *plugin_.sharding, context_->device);
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : tensors) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  training_.path->add_parameters(std::move(trained));
  training_.path->add_sharded(wrapper->sharded);
  for (const auto& optimizer : optimizers) training_.path->restart(optimizer.optimizer());
  return wrapper;
}

sharded::MemoryAccount Accelerator::account_of(const ModelWrapper& wrapper,
                                               const std::vector<at::Tensor>& parameters) const {
  using Kind = sharded::MemoryKind;
  auto account = wrapper.sharded ? wrapper.sharded->memory() : *wrapper.memory;
  std::set<const c10::TensorImpl*> own;
  for (const auto& parameter : parameters) {
    own.insert(parameter.unsafeGetTensorImpl());
    if (wrapper.sharded) continue;
    account.add(Kind::kParameters, static_cast<std::int64_t>(parameter.nbytes()));
    if (parameter.grad().defined()) account.add(Kind::kGradients, static_cast<std::int64_t>(parameter.grad().nbytes()));
    // Where gradients are not views of them, the reducer's buckets are as large.
    if (parameter.requires_grad() && wrapper.ddp && !options_.ddp_kwargs.gradient_as_bucket_view)
      account.add(Kind::kBuckets, static_cast<std::int64_t>(parameter.nbytes()));
  }
  for (const auto& prepared : training_.optimizers) {
    const auto all = optim::parameters_of(prepared.optimizer());
    const auto state = optim::state_dict(prepared.optimizer());
    for (const auto& [index, entries] : state.at("state").as<Value::Dict>()) {
      if (!own.contains(all.at(std::stoul(index)).unsafeGetTensorImpl())) continue;
      for (const auto& [name, value] : entries.as<Value::Dict>()) {
        if (value.is<at::Tensor>() && value.as<at::Tensor>().defined() && !sharded::is_in_file(value.as<at::Tensor>()))
          account.add(Kind::kOptimizer, static_cast<std::int64_t>(value.as<at::Tensor>().nbytes()));
      }
    }
  }
  return account;
}

Accelerator::HookHandle Accelerator::register_save_state_pre_hook(Checkpointing::SaveHook hook) {
  auto& hooks = checkpointing_->save_hooks;
  return HookHandle([checkpointing = checkpointing_, place = hooks.insert(hooks.end(), std::move(hook))] {
    checkpointing->save_hooks.erase(place);
  });
}

Accelerator::HookHandle Accelerator::register_load_state_pre_hook(Checkpointing::LoadHook hook) {
  auto& hooks = checkpointing_->load_hooks;
  return HookHandle([checkpointing = checkpointing_, place = hooks.insert(hooks.end(), std::move(hook))] {
    checkpointing->load_hooks.erase(place);
  });
}

// DeepSpeed's engine.step.
void Accelerator::step_in_backward() {
  for (auto& optimizer : training_.optimizers) {
    const auto parameters = optim::parameters_of(optimizer.optimizer());
    if (plugin_.gradient_clipping) prepare_for_clipping();
    global_grad_norm_ = plugin_.gradient_clipping
                            ? training_.path->clip_norm(parameters, *plugin_.gradient_clipping, /*norm_type=*/2.0)
                            : training_.path->unscaled(training_.path->norm(parameters, /*norm_type=*/2.0));
    optimizer.take_step();
  }
  for (auto& scheduler : training_.schedulers) scheduler.take_step();
}

Accelerator::GatheredParameters::GatheredParameters(std::shared_ptr<sharded::ShardedModel> model, const Group& world,
                                                    std::optional<int> modifier_rank)
    : model_(std::move(model)), world_(&world), modifier_rank_(modifier_rank), uncaught_(std::uncaught_exceptions()) {
  check_argument(!modifier_rank || (*modifier_rank >= 0 && *modifier_rank < world.size()),
                 "gathered_parameters: modifier_rank {} is no rank of {}", *modifier_rank, world.size());
  if (model_) model_->gather_whole();
}

Accelerator::GatheredParameters::~GatheredParameters() noexcept(false) {
  if (!model_) return;
  if (modifier_rank_ && std::uncaught_exceptions() == uncaught_)
    model_->release_whole(*world_, *modifier_rank_);
  else
    model_->release_whole();
}

ShardOptions Accelerator::shard_options() const {
  return {.context = context_,
          .data_parallel = data_parallel_,
          .config = options_.dataloader_config,
          .rng_types = options_.rng_types,
          .put_on_device = options_.device_placement};
}

void Accelerator::backward(const at::Tensor& loss, BackwardOptions options, std::source_location where) {
  const CallSite site(where);
  const PhaseScope phase(context_->listener.get(), "backward");
  if (context_->listener) context_->listener->begin_backward(loss);
  warn_of_models_without_optimizer();
  warn_of_optimizers_stepped_elsewhere();
  const auto& state = context_->gradient_state;
  const auto scaled =
      training_.path->scaled_loss(loss, options.num_items, {.all = state.num_rows(), .real = num_real_rows()});
  torch::autograd::backward(std::vector<at::Tensor>{scaled}, std::vector<at::Tensor>{}, options.retain_graph,
                            options.create_graph);
  if (plugin_.steps_in_backward && sync_gradients()) step_in_backward();
}

// An optimizer that was not prepared steps on scaled gradients under fp16, in every micro-batch of a window, and on
// another order of shards.
void Accelerator::warn_of_models_without_optimizer() {
  auto& num_sought = training_.num_models_with_optimizer_sought;
  for (; num_sought < training_.models.size(); ++num_sought) {
    const auto& [module, wrapper] = training_.models[num_sought];
    NamedTensors trained;
    for (const auto& item : module->named_parameters()) {
      if (item.value().requires_grad()) trained.emplace_back(item.key(), item.value());
    }
    const bool has_optimizer =
        std::any_of(training_.optimizers.begin(), training_.optimizers.end(),
                    [&](const auto& optimizer) { return trains_one_of(optimizer.optimizer(), trained); });
    if (!wrapper->is_trained || trained.empty() || has_optimizer || !handles_matter() || !is_main_process()) continue;
    const auto& object = *module;
    context_->warn(
        fmt::format("model {} ({}) is prepared, but no prepared optimizer has its parameters: pass the optimizer to "
                    "prepare too, and step the one that prepare returns",
                    num_sought, c10::demangle(typeid(object).name())));
  }
}

// A step past the handle is taken in every micro-batch, on scaled gradients, and whether or not they were averaged.
void Accelerator::warn_of_optimizers_stepped_elsewhere() {
  const bool is_known = std::any_of(training_.optimizers.begin(), training_.optimizers.end(),
                                    [](const auto& optimizer) { return optimizer.was_called(); });
  if (is_known || !handles_matter() || shards() || !is_main_process()) return;
  for (std::size_t index = 0; index < training_.optimizers.size(); ++index) {
    if (!training_.optimizers[index].was_stepped_elsewhere()) continue;
    context_->warn(
        fmt::format("the parameters of prepared optimizer {} change, but step() of the handle that prepare returned "
                    "was never called: step that one, not the optimizer that was passed to prepare",
                    index));
  }
}

Accelerator::Window::~Window() {
  for (auto& [wrapper, backward, forward] : restore_) {
    if (wrapper->sharded) {
      wrapper->sharded->sync_gradients = backward;
      continue;
    }
    auto& flags = wrapper->ddp->sync_flags;
    flags = {.backward = backward, .forward = forward.value_or(flags.forward)};
  }
}

Accelerator::Window Accelerator::suspend_sync(std::vector<std::shared_ptr<ModelWrapper>> models) {
  Window window;
  for (auto& wrapper : models) {
    if (wrapper->sharded && !wrapper->sharded->options().reduces_always) {
      window.restore_.push_back({.wrapper = wrapper,
                                 .backward = std::exchange(wrapper->sharded->sync_gradients, false),
                                 .forward = std::nullopt});
    }
    if (!wrapper->ddp) continue;
    auto& flags = wrapper->ddp->sync_flags;
    window.restore_.push_back(
        {.wrapper = wrapper, .backward = std::exchange(flags.backward, false), .forward = std::nullopt});
  }
  return window;
}

Accelerator::Window Accelerator::resume_sync(std::shared_ptr<ModelWrapper> model) {
  Window window;
  if (model->sharded)
    window.restore_.push_back(
        {.wrapper = model, .backward = std::exchange(model->sharded->sync_gradients, true), .forward = std::nullopt});
  if (!model->ddp) return window;
  const auto flags = model->ddp->sync_flags;
  window.restore_.push_back({.wrapper = model, .backward = flags.backward, .forward = flags.forward});
  model->ddp->synchronize_next_backward();
  return window;
}

void Accelerator::forget_prepared() {
  has_model_of_plugin_ = false;
  auto path = std::make_shared<GradientPath>(*context_, options_, context_->world_size / data_parallel_.size);
  if (auto* scaler = path->scaler()) scaler->load_state_dict(training_.path->scaler()->state_dict());
  training_ = {.custom = std::move(training_.custom), .path = std::move(path)};
}

bool Accelerator::check_trigger(std::source_location where) {
  auto flag = at::full({}, trigger_ ? 1 : 0, at::TensorOptions(at::kLong).device(context_->device));
  context_->world.all_reduce(flag, ReduceOp::kSum, where).wait();
  const bool is_set = flag.item<std::int64_t>() >= 1;
  if (is_set) trigger_ = false;
  return is_set;
}

Accelerator::Window Accelerator::begin_micro_batch(std::vector<std::shared_ptr<ModelWrapper>> models) {
  auto& state = context_->gradient_state;
  auto micro_batch = training_.path->begin_micro_batch();
  if (state.plugin.sync_with_dataloader && state.end_of_dataloader()) {
    training_.step = 0;
    state.sync_gradients = true;
  } else {
    ++training_.step;
    state.sync_gradients = training_.step % gradient_accumulation_steps() == 0;
  }
  // In a group of one Accelerate never suspends: a communication hook that rounds shows it.
  const bool communicate = state.sync_gradients || !use_distributed() || state.plugin.sync_each_batch;
  auto window = communicate ? Window() : suspend_sync(std::move(models));
  window.micro_batch_ = std::move(micro_batch);
  return window;
}

at::Tensor Accelerator::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (plugin_.steps_in_backward)
    return global_grad_norm_.defined() ? global_grad_norm_ : at::zeros({});  // backward has clipped
  if (!sync_gradients()) return training_.path->unscaled(training_.path->norm(parameters, norm_type));
  prepare_for_clipping();
  return training_.path->clip_norm(parameters, max_norm, norm_type);
}

void Accelerator::prepare_for_clipping() {
  training_.path->finish_window();
  for (const auto& optimizer : training_.optimizers) training_.path->before_clipping(optimizer.optimizer());
}

void Accelerator::unscale_gradients() {
  for (const auto& optimizer : training_.optimizers) unscale_gradients(optimizer);
}

void Accelerator::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  check_state(sync_gradients() || !training_.path->scaler(),
              "unscale_gradients: gradients are not yet synchronised; call it where sync_gradients() is true");
  training_.path->finish_window();
  training_.path->unscale(optimizer.optimizer());
}

void Accelerator::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  check_state(!shards() && !plugin_.steps_in_backward,
              "clip_grad_value_: not with fsdp_plugin or deepspeed_plugin, as in Accelerate; use clip_grad_norm_");
  if (!sync_gradients()) return;
  prepare_for_clipping();
  optim::clip_grad_value(parameters, clip_value);
}

void Accelerator::join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options,
                                     const std::function<void()>& body, std::source_location where) {
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
    for (const auto& weak : training_.loaders) {
      auto loader = weak.lock();
      if (!loader || loader->is_dispatched()) continue;
      restore.loaders.emplace_back(loader, loader->even_batches());
      loader->set_even_batches(*options.even_batches);
    }
  }
  if (!options.even_batches.value_or(even_batches())) {
    for (const auto& model : models) {
      check_state(!model.wrapper_->sharded,
                  "join_uneven_inputs: not for a model that is sharded: a rank without a batch cannot repeat its "
                  "gathers; use even batches");
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
    bool synchronised = false;
    for (auto* model : restore.joined) synchronised = model->shadow_step() || synchronised;
    if (synchronised) training_.path->shadow_window();
  }
  restore.joined.front()->sync_final_state(is_last, training_.path->shared_state());
  for (auto* model : restore.joined) model->sync_final_model(is_last);
  if (context_->listener) context_->listener->end_join();
}

Accelerator::MetricRows Accelerator::metric_rows() const {
  const auto& state = context_->gradient_state;
  const auto own = state.num_rows().value_or(0);
  MetricRows rows{.per_rank = own};
  if (!state.fills_up()) return rows;
  if (const auto real = state.real_rows(); !real.empty()) {
    for (std::size_t rank = 0; rank < real.size(); ++rank) {
      const auto begin = static_cast<std::int64_t>(rank) * own;
      rows.kept.push_back({.begin = begin, .end = begin + real[rank]});
    }
  } else if (state.end_of_dataloader() && state.remainder() > 0 &&
             (data_parallel_.size > 1 || own != state.remainder())) {
    rows.kept = {{.begin = 0, .end = state.remainder()}};
  }
  return rows;
}

Accelerator::MetricRows Accelerator::tensor_metric_rows() const {
  const auto& state = context_->gradient_state;
  const bool may_be_padded =
      !state.fills_up() && state.end_of_dataloader() && state.remainder() > 0 && data_parallel_.size > 1;
  if (!may_be_padded) return metric_rows();
  const auto of_ranks =
      operations::gather(data_parallel_.group, at::full({1}, state.num_rows().value_or(0),
                                                        at::TensorOptions(context_->device).dtype(at::kLong)))
          .cpu();
  MetricRows rows{.per_rank = of_ranks.max().item<std::int64_t>(), .are_padded = true};
  for (std::int64_t rank = 0; rank < of_ranks.size(0); ++rank) {
    const auto begin = rank * rows.per_rank;
    rows.kept.push_back({.begin = begin, .end = begin + of_ranks[rank].item<std::int64_t>()});
  }
  return rows;
}

std::optional<std::int64_t> Accelerator::num_real_rows() const {
  const auto own = context_->gradient_state.num_rows();
  const auto kept = metric_rows().kept;
  if (!own || kept.empty()) return own;
  const auto begin = data_parallel_.rank * *own;
  std::int64_t real = 0;
  for (const auto& range : kept)
    real += std::max<std::int64_t>(0, std::min(range.end, begin + *own) - std::max(range.begin, begin));
  return real;
}

at::Tensor Accelerator::MetricRows::cut(const at::Tensor& gathered) const {
  const bool is_cut =
      !kept.empty() && (!are_padded || gathered.size(0) == per_rank * static_cast<std::int64_t>(kept.size()));
  if (!is_cut) return gathered;
  std::vector<at::Tensor> rows;
  for (const auto& range : kept) rows.push_back(slice_rows(gathered, range));
  return rows.size() == 1 ? rows.front() : concatenate(rows);
}

void Accelerator::MetricRows::check(bool fits, std::optional<std::int64_t> rows) {
  check_argument(fits,
                 "gather_for_metrics: the last step holds duplicates or padding, and a value of {} rows, which are not "
                 "as many as the batch has samples, "
                 "cannot be cut; gather one row per sample and reduce afterwards",
                 rows ? fmt::format("{}", *rows) : "no");
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
