#include "reference/parallel/distributed_data_parallel.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/parallel/backward_pass.hpp"
#include "reference/parallel/comm_hook.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/resumable_reducer.hpp"
#include "reference/parallel/same_model.hpp"

namespace accel {
namespace {

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> result;
  for (const auto& [name, tensor] : named) result.push_back(tensor);
  return result;
}

}  // namespace

struct DistributedDataParallel::State {
  Group group;
  DistributedDataParallelKwargs kwargs;
  std::shared_ptr<StepObserver> listener;
  const SyncFlags* sync_flags;
  std::shared_ptr<Replicas> replicas = std::make_shared<Replicas>();
  ModelTensors tensors;
  BufferSync buffers{std::move(tensors.buffers)};
  // Those that the reducer averages, in the module's order; none, and no reducer, if nothing has been trained so far.
  std::vector<at::Tensor> parameters;
  ReducerParts averaging;
  Value loaded_buckets;  // of a checkpoint, as in state_dict; null once the reducer has them
  std::unique_ptr<ReductionRecord> reductions;
  bool joins = false, notifies = false;
  std::vector<std::pair<at::Tensor, Work>> notices;  // in flight, of the current step

  [[nodiscard]] at::Tensor flag(double value) const {
    return at::full({1}, value, parameters.front().options().dtype(at::kFloat).requires_grad(false));
  }

  // Sends `value` to the ranks that ran out of batches and wait for it in shadow_step. Nothing waits for it here.
  void notify(double value) {
    auto tensor = flag(value);
    auto work = group.all_reduce(tensor);
    notices.emplace_back(std::move(tensor), std::move(work));
  }

  // The largest rank with `is_candidate`, the same on every rank. Source: DistributedDataParallel._find_common_rank.
  [[nodiscard]] int agree_on_rank(bool is_candidate) const {
    auto rank = at::full({1}, is_candidate ? group.rank() : -1,
                         parameters.front().options().dtype(at::kLong).requires_grad(false));
    group.all_reduce(rank, ReduceOp::kMax).wait();
    // Waits for the device: the rank decides on the host who is the root of the following broadcast.
    const auto agreed = rank.item<std::int64_t>();
    ensure(agreed >= 0, "no rank holds the model's final state");
    return static_cast<int>(agreed);
  }

  // Starts the all-reduce of a bucket of zeros, to match the one that the other ranks start with their gradients.
  [[nodiscard]] BucketReduction begin_shadow(c10d::GradBucket& bucket) const {
    if (averaging.hook != nullptr) return averaging.hook->reduce(bucket);
    auto sent = bucket.getBuffer();
    auto work = sum_over_ranks(group, sent);
    return {.sent = std::move(sent), .work = std::move(work)};
  }

  [[nodiscard]] bool syncs_buffers(const SyncFlags& flags) const {
    return flags.forward && kwargs.broadcast_buffers && !buffers.empty();
  }

  // All parameters, their masters, the buffers that are broadcast: in one list, as torch's _sync_module_states has
  // them.
  [[nodiscard]] NamedTensors states() const {
    auto all = tensors.parameters;
    for (std::size_t place = 0; place < tensors.masters.size(); ++place)
      all.emplace_back(fmt::format("master weight {}", place), tensors.masters[place]);
    for (std::size_t place = 0; kwargs.broadcast_buffers && place < buffers.tensors().size(); ++place)
      all.emplace_back(fmt::format("buffer {}", place), buffers.tensors()[place]);
    return all;
  }
  void broadcast_states(int root) { broadcast_tensors(group, tensors_of(states()), root); }

  // Whether the reducer averages exactly the parameters that a backward pass would now reach. One whose parameters are
  // all frozen keeps its buckets for the time after: that is the discriminator in a generator's step.
  [[nodiscard]] bool follows_parameters() const {
    std::size_t num_trained = 0;
    bool are_same = true;
    for (const auto& [name, parameter] : tensors.parameters) {
      if (!parameter.requires_grad()) continue;
      are_same = are_same && num_trained < parameters.size() && parameter.is_same(parameters[num_trained]) &&
                 reductions->sees(num_trained);
      ++num_trained;
    }
    return num_trained == 0 || (are_same && num_trained == parameters.size());
  }

  // Collective: the ranks' programs must have made the same changes.
  void follow_parameters() {
    if (follows_parameters()) return;
    averaging.reducer ? check_same_model(group, tensors.parameters) : broadcast_states(/*root=*/0);
    parameters.clear();
    replicas->parameters.clear();
    replicas->layouts.clear();
    for (std::size_t place = 0; place < tensors.parameters.size(); ++place) {
      const auto& [name, parameter] = tensors.parameters[place];
      if (!parameter.requires_grad()) continue;
      parameters.push_back(parameter);
      replicas->parameters.emplace_back(name, parameter);
      if (!tensors.layouts.empty()) replicas->layouts.push_back(tensors.layouts[place]);
    }
    const bool is_first = reductions == nullptr;
    begin_averaging();
    if (is_first && listener && !replicas->stage_rank) listener->add_replicas(replicas);
    resume_buckets();
  }

  // With the buckets of a new model.
  void begin_averaging() {
    averaging = {};  // takes the hooks away
    averaging = make_reducer(replicas->parameters, tensors.sparse, group, kwargs);
    // After make_reducer, so that this hook runs after the reducer's on the same gradient.
    const auto before = std::move(reductions);
    reductions = std::make_unique<ReductionRecord>(parameters, [this] { return origin(); });
    if (before) reductions->continue_from(*before);
  }

  // The program may freeze parameters only after it has loaded, so buckets of other parameters wait.
  void resume_buckets() {
    if (loaded_buckets.is_null() || !averaging.reducer) return;
    if (loaded_buckets.contains("parameters")) {
      const auto& names = loaded_buckets.at("parameters").as<Value::List>();
      const auto is_name = [](const Value& name, const auto& item) { return name == Value(item.first); };
      if (!std::ranges::equal(names, replicas->parameters, is_name)) return;
    }
    averaging.reducer->resume_with_buckets(buckets_of(loaded_buckets.at("buckets"), parameters.size()));
    loaded_buckets = Value();
  }

  // Of a gradient that arrives now.
  [[nodiscard]] GradientOrigin origin() {
    buffers.gradient_arrived();
    replicas->are_local = !averaging.reducer->reduces();
    if (averaging.reducer->reduces()) return GradientOrigin::kReduced;
    return sync_flags->backward ? GradientOrigin::kUnreduced : GradientOrigin::kLocal;
  }
};

DistributedDataParallel::DistributedDataParallel(ModelTensors tensors, Group group,
                                                 const DistributedDataParallelKwargs& kwargs,
                                                 std::shared_ptr<StepObserver> listener)
    : state_(std::make_unique<State>(State{.group = std::move(group),
                                           .kwargs = kwargs,
                                           .listener = std::move(listener),
                                           .sync_flags = &sync_flags,
                                           .tensors = std::move(tensors)})) {
  // Before the broadcast, so that every rank throws alike instead of one leaving the others in it.
  check_same_model(state_->group, state_->states());
  state_->replicas->stage_rank = state_->tensors.stage_rank;
  state_->follow_parameters();
  // Every rank of a pipeline is observed, also one whose stages have nothing to train.
  if (state_->replicas->stage_rank && state_->listener) state_->listener->add_replicas(state_->replicas);
}

int DistributedDataParallel::num_replicas() const { return state_->group.size(); }

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::end() {
  state_->averaging.reducer.reset();
  state_->reductions.reset();
  state_->replicas->parameters.clear();
  state_->tensors = {};
  state_->buffers = BufferSync({});
}

void DistributedDataParallel::before_forward() {
  const bool grad_enabled = c10::GradMode::is_enabled();
  auto& state = *state_;
  // The hooks of a static graph run in every backward pass. After a pass without synchronization, c10d would silently
  // skip all later reductions.
  check_state(!state.kwargs.static_graph || sync_flags.backward || !grad_enabled,
              "ddp_kwargs: static_graph: every backward pass must synchronise gradients; train without no_sync() and "
              "gradient accumulation, or with sync_each_batch");
  if (grad_enabled) state.follow_parameters();
  if (!state.averaging.reducer) return;
  check_complete("model(...)");
  // From here on the order of collectives is DDP.forward's; shadow_step makes the matching calls in the same order.
  if (grad_enabled && sync_flags.backward) state.averaging.reducer->prepare_for_forward();
  if (state.joins) wait_for_notices();
  if (state.joins && state.notifies) state.notify(1);
  if (grad_enabled || state.joins) state.averaging.reducer->rebuild_buckets();
  // In join mode rank 0 may have run out of batches and hold stale buffers, so the ranks agree on an active one.
  if (state.syncs_buffers(sync_flags)) {
    state.buffers.receive(
        state.group, {.root = state.joins ? state.agree_on_rank(/*is_candidate=*/true) : 0, .is_joined = state.joins});
  }
  if (state.joins) state.notify(grad_enabled && sync_flags.backward ? 1 : 0);
}

void DistributedDataParallel::wait_for_notices() {
  for (auto& [tensor, work] : state_->notices) work.wait();
  state_->notices.clear();
}

void DistributedDataParallel::begin_join(bool notifies) {
  check_argument(!state_->averaging.has_sparse_gradients,
                 "join_uneven_inputs: models with sparse gradients are unsupported: a rank without a batch cannot "
                 "match their all-reduce; use even batches");
  state_->joins = true;
  state_->notifies = notifies;
}

void DistributedDataParallel::end_join() {
  wait_for_notices();
  cancel_join();
}

void DistributedDataParallel::cancel_join() noexcept {
  state_->joins = state_->notifies = false;
  state_->notices.clear();
}

int DistributedDataParallel::num_active_ranks() {
  auto count = state_->flag(0);
  state_->group.all_reduce(count).wait();
  return static_cast<int>(count.item<float>());
}

// Mirrors before_forward and backward collective by collective. Source: torch's _DDPJoinHook.main_hook.
bool DistributedDataParallel::shadow_step() {
  auto& state = *state_;
  state.averaging.reducer->rebuild_buckets();
  if (state.syncs_buffers(sync_flags))
    state.buffers.receive(state.group, {.root = state.agree_on_rank(/*is_candidate=*/false), .is_joined = true});
  auto syncs_backward = state.flag(0);
  state.group.all_reduce(syncs_backward).wait();
  sync_flags.forward = syncs_backward.item<float>() != 0;
  if (!sync_flags.forward) return false;
  // Waits for works, not for futures: the simulator does not see a rank that blocks in a future.
  const c10::NoGradGuard no_grad;
  std::vector<BucketReduction> reductions;
  for (auto& bucket : state.averaging.reducer->get_grad_buckets(/*return_zero_tensors=*/true))
    reductions.push_back(state.begin_shadow(bucket));
  for (auto& reduction : reductions) {
    if (reduction.work) reduction.work->wait();
  }
  if (state.kwargs.find_unused_parameters) {
    // Must be zeroed: it still holds the last step's reduced map, or uninitialized memory.
    auto used = state.averaging.reducer->get_local_used_map_on_device().zero_();
    state.group.all_reduce(used).wait();
  }
  state.averaging.reducer->push_rebuilt_params_for_all_indices();
  return true;
}

void DistributedDataParallel::sync_final_model(bool is_last) {
  state_->broadcast_states(state_->agree_on_rank(is_last));
  state_->replicas->are_local = false;
}

void DistributedDataParallel::sync_final_state(bool is_last, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty()) broadcast_tensors(state_->group, tensors, state_->agree_on_rank(is_last));
}

void DistributedDataParallel::synchronize_next_backward() {
  sync_flags = {.backward = true, .forward = true};
  if (!trains()) return;
  state_->reductions->begin_pass();
  state_->averaging.reducer->prepare_for_backward({});
}

// Rebuilds buckets first, as the next forward would, so that the state holds the buckets that the next step uses.
Value DistributedDataParallel::state_dict() {
  Buckets buckets;
  Value::List names;
  if (auto* const reducer = state_->averaging.reducer.get()) {
    reducer->rebuild_buckets();
    if (reducer->has_rebuilt_buckets()) buckets = reducer->buckets();
  }
  for (const auto& [name, parameter] : state_->replicas->parameters) names.emplace_back(name);
  return Value::Dict{{"bucket_bytes", state_->averaging.bucket_bytes},
                     {"first_bucket_bytes", state_->averaging.first_bucket_bytes},
                     {"buckets", buckets.empty() ? Value() : to_value(buckets)},
                     {"parameters", std::move(names)},
                     {"forward", sync_flags.forward}};
}

void DistributedDataParallel::load_state_dict(const Value& state) {
  try {
    const bool has_their_sizes = state.at("bucket_bytes") == Value(state_->averaging.bucket_bytes) &&
                                 state.at("first_bucket_bytes") == Value(state_->averaging.first_bucket_bytes);
    const bool forward = state.at("forward").as<bool>();
    const bool has_buckets = has_their_sizes && !state.at("buckets").is_null();
    state_->loaded_buckets = has_buckets ? state : Value();
    // The program may have trained since it saved the state, and rebuilt its buckets.
    const auto* reducer = state_->averaging.reducer.get();
    if (!has_buckets && reducer != nullptr && reducer->has_rebuilt_buckets()) state_->begin_averaging();
    state_->resume_buckets();
    sync_flags.forward = forward;
  } catch (const ArgumentError& error) {
    throw CheckpointError(fmt::format("the state does not fit the model's DistributedDataParallel: {}", error.what()));
  }
}

bool DistributedDataParallel::needs_outputs() const {
  return state_->kwargs.find_unused_parameters || state_->kwargs.static_graph;
}

bool DistributedDataParallel::trains() const { return state_->averaging.reducer != nullptr; }

UnaveragedGradients DistributedDataParallel::take_unaveraged() {
  UnaveragedGradients found;
  if (!trains()) return found;
  const auto& origins = state_->reductions->origins();
  const auto written = state_->reductions->take_written();
  for (std::size_t place = 0; place < origins.size() && state_->group.size() > 1; ++place) {
    const auto& item = state_->replicas->parameters[place];
    if (!item.second.grad().defined()) continue;
    if (origins[place] == GradientOrigin::kUnreduced) found.bypassing.push_back(item);
    if (written[place]) found.written.push_back(item);
  }
  return found;
}

void DistributedDataParallel::accept_gradients() {
  if (!trains()) return;
  (void)state_->reductions->take_written();
  state_->replicas->are_local = false;
}

void DistributedDataParallel::suspend_reduction() {
  sync_flags.forward = false;
  if (trains()) state_->averaging.reducer->expect_no_backward();
}

void DistributedDataParallel::follow_group() {
  auto& averaging = state_->averaging;
  if (!averaging.reducer) return;
  auto buckets = averaging.reducer->has_rebuilt_buckets() ? averaging.reducer->buckets() : Buckets();
  state_->begin_averaging();
  if (!buckets.empty()) averaging.reducer->resume_with_buckets(std::move(buckets));
}

void DistributedDataParallel::check_complete(const char* what) const {
  if (!trains() || !state_->averaging.reducer->is_incomplete()) return;
  std::vector<std::string> missing;
  for (std::size_t place = 0; place < state_->parameters.size(); ++place) {
    if (!state_->reductions->has_arrived(place))
      missing.push_back(fmt::format("'{}'", state_->replicas->parameters[place].first));
  }
  throw StateError(fmt::format(
      "{}: the last backward pass gave {} no gradient on this rank, so averaging has not ended: every "
      "parameter that requires a gradient must be used in forward, and take part in the loss. Set "
      "ddp_kwargs: find_unused_parameters, or freeze what a step does not use (requires_grad_(false)) before "
      "its forward",
      what, listed(missing, ", ")));
}

std::optional<GradientOrigin> DistributedDataParallel::origin_of(const at::Tensor& parameter) const {
  const auto& all = state_->parameters;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& own) { return own.is_same(parameter); });
  return found == all.end() ? std::nullopt : std::optional(state_->reductions->origins()[found - all.begin()]);
}

void DistributedDataParallel::explain_backward(const std::exception& error) const { state_->buffers.explain(error); }

bool DistributedDataParallel::after_forward(std::vector<at::Tensor>& outputs) {
  state_->buffers.forward_ended(/*has_graph=*/c10::GradMode::is_enabled());
  sync_flags.forward = c10::GradMode::is_enabled() && sync_flags.backward;
  if (!sync_flags.forward || !trains()) return false;
  auto& state = *state_;
  state.reductions->begin_pass();
  const bool is_static = state.kwargs.static_graph, search = state.kwargs.find_unused_parameters && !is_static;
  state.averaging.reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>{});
  if (search) {
    state.reductions->will_reduce_all();
    outputs = through_sink(outputs, /*at_end=*/{});
    return true;
  }
  if (!is_static || !*state.averaging.delays_all_reduce) return false;
  check_argument(!outputs.empty(),
                 "ddp_kwargs: static_graph: the model returned no tensors; expected a tree of tensors, from which the "
                 "first backward pass starts");
  // c10d learns the graph in the first pass, so its reductions can only start when that pass has ended.
  outputs = through_sink(outputs, [reducer = state.averaging.reducer, delays = state.averaging.delays_all_reduce] {
    if (!*delays) return;
    reducer->delay_all_reduce();
    *delays = false;
  });
  return true;
}

}  // namespace accel
