#include "reference/parallel/distributed_data_parallel.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <limits>

#include "reference/core/errors.hpp"
#include "reference/parallel/backward_pass.hpp"
#include "reference/parallel/comm_hook.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/same_model.hpp"

namespace accel {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// Sizes as in torch/nn/parallel/distributed.py: another size gives other buckets, and so other roundings of the sums.
constexpr std::int64_t kFirstBucketBytes = kMiB;  // dist._DEFAULT_FIRST_BUCKET_BYTES
constexpr std::int64_t kDefaultBucketBytes = 25 * kMiB;
constexpr std::int64_t kBroadcastBucketBytes = 250 * kMiB;

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

using Buckets = std::vector<std::vector<std::size_t>>;

// After the first backward pass the reducer rebuilds its buckets in the order in which gradients became ready. A
// resumed run must start with the rebuilt buckets, which c10d offers no way to save or set; hence the protected
// members.
class ResumableReducer final : public c10d::Reducer {
 public:
  using Reducer::Reducer;

  /// Whether the current backward pass is averaged over the ranks.
  [[nodiscard]] bool reduces() const { return expect_autograd_hooks_; }
  [[nodiscard]] bool has_rebuilt_buckets() const { return has_rebuilt_bucket_; }
  [[nodiscard]] Buckets buckets() const {
    Buckets buckets;
    for (const auto& bucket : buckets_) buckets.push_back(bucket.variable_indices);
    return buckets;
  }
  void resume_with_buckets(Buckets buckets) {
    initialize_buckets(std::move(buckets));
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    has_rebuilt_bucket_ = true;
  }
};

Value to_value(const Buckets& buckets) {
  Value::List list;
  for (const auto& bucket : buckets) {
    Value::List indices;
    for (const auto index : bucket) indices.emplace_back(static_cast<std::int64_t>(index));
    list.emplace_back(std::move(indices));
  }
  return list;
}

// Reads buckets of a model with `num_parameters` parameters, and checks that each parameter is in exactly one.
Buckets buckets_of(const Value& value, std::size_t num_parameters) {
  Buckets buckets;
  std::vector<bool> is_there(num_parameters, false);
  std::size_t count = 0;
  for (const auto& indices : value.as<Value::List>()) {
    auto& bucket = buckets.emplace_back();
    for (const auto& index : indices.as<Value::List>()) {
      const auto place = static_cast<std::size_t>(index.as<std::int64_t>());
      check_argument(place < num_parameters && !is_there[place],
                     "buckets: index {} is out of range or listed twice; expected each parameter once", place);
      is_there[place] = true;
      ++count;
      bucket.push_back(place);
    }
  }
  check_argument(count == num_parameters, "buckets: they list {} parameters, but the model has {}", count,
                 num_parameters);
  return buckets;
}

}  // namespace

struct DistributedDataParallel::State {
  Group group;
  DistributedDataParallelKwargs kwargs;
  std::shared_ptr<StepListener> listener;
  std::shared_ptr<Replicas> replicas = std::make_shared<Replicas>();
  std::vector<at::Tensor> parameters, buffers;
  std::shared_ptr<ResumableReducer> reducer;
  std::int64_t bucket_bytes = 0, first_bucket_bytes = 0;
  std::shared_ptr<c10d::Logger> logger;  // the reducer dereferences it without a null check
  std::unique_ptr<ReductionRecord> reductions;
  CommHook* hook = nullptr;                 // owned by the reducer; null: gradients are sent unchanged
  std::shared_ptr<bool> delays_all_reduce;  // true during the first backward pass of a static graph
  bool joins = false, notifies = false, has_sparse_gradients = false;
  std::vector<at::Tensor> states;                    // all parameters, their masters, the buffers that are broadcast
  std::vector<std::pair<at::Tensor, Work>> notices;  // in flight, of the current step

  void broadcast(const std::vector<at::Tensor>& tensors, int root = 0) {
    if (!tensors.empty())
      c10d::broadcast_coalesced(group.process_group(), detached(tensors), kBroadcastBucketBytes, root);
  }

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
    if (hook != nullptr) return hook->reduce(bucket);
    auto sent = bucket.getBuffer();
    auto work = sum_over_ranks(group, sent);
    return {.sent = std::move(sent), .work = std::move(work)};
  }

  [[nodiscard]] bool syncs_buffers(const SyncFlags& flags) const {
    return flags.forward && kwargs.broadcast_buffers && !buffers.empty();
  }

  // Broadcasts all parameters, then buffers, in one list as torch's _sync_module_states does; the checks come first, so
  // that every rank throws alike instead of one leaving the others in the broadcast.
  void sync_module_states(NamedTensors all, const std::vector<at::Tensor>& masters) {
    for (std::size_t place = 0; place < masters.size(); ++place)
      all.emplace_back(fmt::format("master weight {}", place), masters[place]);
    for (std::size_t place = 0; kwargs.broadcast_buffers && place < buffers.size(); ++place)
      all.emplace_back(fmt::format("buffer {}", place), buffers[place]);
    check_same_model(group, all);
    check_argument(
        !parameters.empty(),
        "prepare: the model has no parameter that requires a gradient, so there is nothing to train in parallel; use "
        "prepare_model(model, {{.evaluation_mode = true}})");
    for (auto& [name, tensor] : all) states.push_back(std::move(tensor));
    broadcast(states);
  }

  // Sets the sizes of rebuilt buckets, and returns the size limits of the initial ones.
  [[nodiscard]] std::vector<std::size_t> choose_bucket_limits() {
    // Accelerate only passes options that differ from its defaults: an explicit 25 also has a first bucket of 1 MiB.
    const bool has_own_limit = kwargs.bucket_cap_mb.has_value() && *kwargs.bucket_cap_mb * kMiB != kDefaultBucketBytes;
    bucket_bytes = has_own_limit ? *kwargs.bucket_cap_mb * kMiB : kDefaultBucketBytes;
    first_bucket_bytes = has_own_limit ? bucket_bytes : kFirstBucketBytes;
    if (kwargs.static_graph || !kwargs.find_unused_parameters) return {std::numeric_limits<std::int64_t>::max()};
    if (has_own_limit) return {static_cast<std::size_t>(bucket_bytes)};
    return {static_cast<std::size_t>(kFirstBucketBytes), static_cast<std::size_t>(bucket_bytes)};
  }

  [[nodiscard]] std::vector<bool> expect_sparse(const std::vector<at::Tensor>& sparse) const {
    std::vector<bool> expected;
    for (const auto& parameter : parameters) {
      expected.push_back(
          std::any_of(sparse.begin(), sparse.end(), [&](const auto& other) { return other.is_same(parameter); }));
    }
    return expected;
  }

  [[nodiscard]] std::unordered_map<std::size_t, std::string> names() const {
    std::unordered_map<std::size_t, std::string> names;
    for (const auto& [name, parameter] : replicas->parameters) names.emplace(names.size(), name);
    return names;
  }

  void make_reducer(const std::vector<at::Tensor>& sparse) {
    const auto expected_sparse = expect_sparse(sparse);
    has_sparse_gradients = std::find(expected_sparse.begin(), expected_sparse.end(), true) != expected_sparse.end();
    auto buckets =
        std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, choose_bucket_limits(), expected_sparse));
    // Reversed, as in Python: gradients arrive roughly in the reverse order of the parameters.
    std::reverse(buckets.begin(), buckets.end());
    delays_all_reduce = std::make_shared<bool>(kwargs.static_graph);
    const auto reducing =
        kwargs.static_graph ? blocking_group(group, parameters.front().device(), delays_all_reduce) : group;
    reducer = std::make_shared<ResumableReducer>(
        parameters, std::move(buckets), reducing.process_group(), expected_sparse, bucket_bytes,
        kwargs.find_unused_parameters, kwargs.gradient_as_bucket_view.value_or(false), names(), first_bucket_bytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
    if (kwargs.static_graph) reducer->set_static_graph();
    if (auto comm_hook = make_comm_hook(kwargs, reducing)) {
      hook = comm_hook.get();
      reducer->register_comm_hook(std::move(comm_hook));
    }
  }
};

DistributedDataParallel::DistributedDataParallel(ModelTensors tensors, Group group,
                                                 const DistributedDataParallelKwargs& kwargs,
                                                 std::shared_ptr<StepListener> listener)
    : state_(std::make_unique<State>(State{std::move(group), kwargs, std::move(listener)})) {
  for (std::size_t place = 0; place < tensors.parameters.size(); ++place) {
    const auto& [name, parameter] = tensors.parameters[place];
    if (!parameter.requires_grad()) continue;
    state_->parameters.push_back(parameter);
    state_->replicas->parameters.emplace_back(name, parameter);
    if (!tensors.parts.empty()) state_->replicas->parts.push_back(tensors.parts[place]);
  }
  state_->buffers = std::move(tensors.buffers);
  state_->sync_module_states(std::move(tensors.parameters), tensors.masters);
  state_->make_reducer(tensors.sparse);
  // After make_reducer, so that this hook runs after the reducer's on the same gradient.
  state_->reductions = std::make_unique<ReductionRecord>(state_->parameters, [this] {
    if (state_->reducer->reduces()) {
      state_->replicas->are_local = false;
      return GradientOrigin::kReduced;
    }
    state_->replicas->are_local = true;
    return sync_flags.backward ? GradientOrigin::kUnreduced : GradientOrigin::kLocal;
  });
  if (state_->listener) state_->listener->add_replicas(state_->replicas);
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::before_forward() {
  const bool grad_enabled = c10::GradMode::is_enabled();
  auto& state = *state_;
  // The hooks of a static graph run in every backward pass. After a pass without synchronization, c10d would silently
  // skip all later reductions.
  check_state(!state.kwargs.static_graph || sync_flags.backward || !grad_enabled,
              "ddp_kwargs: static_graph: every backward pass must synchronise gradients; train without no_sync() and "
              "gradient accumulation, or with sync_each_batch");
  // From here on the order of collectives is DDP.forward's; shadow_step makes the matching calls in the same order.
  if (grad_enabled && sync_flags.backward) state.reducer->prepare_for_forward();
  if (state.joins) wait_for_notices();
  if (state.joins && state.notifies) state.notify(1);
  if (grad_enabled || state.joins) state.reducer->rebuild_buckets();
  // In join mode rank 0 may have run out of batches and hold stale buffers, so the ranks agree on an active one.
  if (state.syncs_buffers(sync_flags))
    state.broadcast(state.buffers, state.joins ? state.agree_on_rank(/*is_candidate=*/true) : 0);
  if (state.joins) state.notify(grad_enabled && sync_flags.backward ? 1 : 0);
}

void DistributedDataParallel::wait_for_notices() {
  for (auto& [tensor, work] : state_->notices) work.wait();
  state_->notices.clear();
}

void DistributedDataParallel::begin_join(bool notifies) {
  check_argument(!state_->has_sparse_gradients,
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
  state.reducer->rebuild_buckets();
  if (state.syncs_buffers(sync_flags)) state.broadcast(state.buffers, state.agree_on_rank(/*is_candidate=*/false));
  auto syncs_backward = state.flag(0);
  state.group.all_reduce(syncs_backward).wait();
  sync_flags.forward = syncs_backward.item<float>() != 0;
  if (!sync_flags.forward) return false;
  // Waits for works, not for futures: the simulator does not see a rank that blocks in a future.
  const c10::NoGradGuard no_grad;
  std::vector<BucketReduction> reductions;
  for (auto& bucket : state.reducer->get_grad_buckets(/*return_zero_tensors=*/true))
    reductions.push_back(state.begin_shadow(bucket));
  for (auto& reduction : reductions) {
    if (reduction.work) reduction.work->wait();
  }
  if (state.kwargs.find_unused_parameters) {
    // Must be zeroed: it still holds the last step's reduced map, or uninitialized memory.
    auto used = state.reducer->get_local_used_map_on_device().zero_();
    state.group.all_reduce(used).wait();
  }
  state.reducer->push_rebuilt_params_for_all_indices();
  return true;
}

void DistributedDataParallel::sync_final_model(bool is_last) {
  state_->broadcast(state_->states, state_->agree_on_rank(is_last));
  state_->replicas->are_local = false;
}

void DistributedDataParallel::sync_final_state(bool is_last, const std::vector<at::Tensor>& tensors) {
  if (!tensors.empty()) state_->broadcast(tensors, state_->agree_on_rank(is_last));
}

void DistributedDataParallel::synchronize_next_backward() {
  sync_flags = {.backward = true, .forward = true};
  state_->reducer->prepare_for_backward({});
}

// Rebuilds buckets first, as the next forward would, so that the state holds the buckets that the next step uses.
Value DistributedDataParallel::state_dict() {
  auto& reducer = *state_->reducer;
  reducer.rebuild_buckets();
  return Value::Dict{{"bucket_bytes", state_->bucket_bytes},
                     {"first_bucket_bytes", state_->first_bucket_bytes},
                     {"buckets", reducer.has_rebuilt_buckets() ? to_value(reducer.buckets()) : Value()},
                     {"forward", sync_flags.forward}};
}

void DistributedDataParallel::load_state_dict(const Value& state) {
  try {
    const bool has_their_sizes = state.at("bucket_bytes") == Value(state_->bucket_bytes) &&
                                 state.at("first_bucket_bytes") == Value(state_->first_bucket_bytes);
    const bool forward = state.at("forward").as<bool>();
    if (const auto& buckets = state.at("buckets"); !buckets.is_null() && has_their_sizes)
      state_->reducer->resume_with_buckets(buckets_of(buckets, state_->parameters.size()));
    sync_flags.forward = forward;
  } catch (const ArgumentError& error) {
    throw CheckpointError(fmt::format("the state does not fit the model's DistributedDataParallel: {}", error.what()));
  }
}

bool DistributedDataParallel::needs_outputs() const {
  return state_->kwargs.find_unused_parameters || state_->kwargs.static_graph;
}

NamedTensors DistributedDataParallel::unreduced() const {
  const auto& origins = state_->reductions->origins();
  NamedTensors found;
  for (std::size_t place = 0; place < origins.size() && state_->group.size() > 1; ++place) {
    const auto& item = state_->replicas->parameters[place];
    if (origins[place] == GradientOrigin::kUnreduced && item.second.grad().defined()) found.push_back(item);
  }
  return found;
}

std::optional<GradientOrigin> DistributedDataParallel::origin_of(const at::Tensor& parameter) const {
  const auto& all = state_->parameters;
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& own) { return own.is_same(parameter); });
  return found == all.end() ? std::nullopt : std::optional(state_->reductions->origins()[found - all.begin()]);
}

bool DistributedDataParallel::after_forward(std::vector<at::Tensor>& outputs) {
  sync_flags.forward = c10::GradMode::is_enabled() && sync_flags.backward;
  if (!sync_flags.forward) return false;
  auto& state = *state_;
  const bool is_static = state.kwargs.static_graph, search = state.kwargs.find_unused_parameters && !is_static;
  state.reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>{});
  if (search) {
    state.reductions->will_reduce_unreduced();
    outputs = through_sink(outputs, /*at_end=*/{});
    return true;
  }
  if (!is_static || !*state.delays_all_reduce) return false;
  check_argument(!outputs.empty(),
                 "ddp_kwargs: static_graph: the model returned no tensors; expected a tree of tensors, from which the "
                 "first backward pass starts");
  // c10d learns the graph in the first pass, so its reductions can only start when that pass has ended.
  outputs = through_sink(outputs, [reducer = state.reducer, delays = state.delays_all_reduce] {
    if (!*delays) return;
    reducer->delay_all_reduce();
    *delays = false;
  });
  return true;
}

}  // namespace accel
