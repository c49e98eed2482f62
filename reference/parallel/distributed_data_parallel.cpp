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
#include "reference/parallel/same_model.hpp"

namespace accel {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
constexpr std::int64_t kFirstBucketBytes = kMiB;        // dist._DEFAULT_FIRST_BUCKET_BYTES
constexpr std::int64_t kDefaultBucketBytes = 25 * kMiB;
constexpr std::int64_t kBroadcastBucketBytes = 250 * kMiB;

std::vector<at::Tensor> detached(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const auto& tensor : tensors) result.push_back(tensor.detach());
  return result;
}

}  // namespace

struct DistributedDataParallel::State {
  Group group;
  DistributedDataParallelKwargs kwargs;
  std::shared_ptr<StepListener> listener;
  std::shared_ptr<const NamedTensors> replicas;  // the parameters with their names
  std::vector<at::Tensor> parameters, buffers;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;  // the reducer reports to it without asking whether it is there
  bool require_forward_param_sync = true;
  bool joins = false, notifies = false;
  std::vector<at::Tensor> states;  // parameters, all of them, then buffers that are broadcast
  std::vector<std::pair<at::Tensor, Work>> notices;  // of the current step, under way

  void broadcast(const std::vector<at::Tensor>& tensors, int root = 0) {
    if (!tensors.empty()) c10d::broadcast_coalesced(group.process_group(), detached(tensors), kBroadcastBucketBytes, root);
  }

  [[nodiscard]] at::Tensor flag(double value) const { return at::full({1}, value, parameters.front().options().dtype(at::kFloat).requires_grad(false)); }

  // Says something to the ranks that have no more batches, who wait for it.
  void notify(double value) {
    auto tensor = flag(value);
    auto work = group.all_reduce(tensor);
    notices.emplace_back(std::move(tensor), std::move(work));
  }

  // The largest of the ranks for which `is_candidate` holds.
  [[nodiscard]] int agree_on_rank(bool is_candidate) const {
    auto rank = at::full({1}, is_candidate ? group.rank() : -1, parameters.front().options().dtype(at::kLong).requires_grad(false));
    group.all_reduce(rank, ReduceOp::kMax).wait();
    const auto agreed = rank.item<std::int64_t>();
    ensure(agreed >= 0, "no rank holds the model's final state");
    return static_cast<int>(agreed);
  }

  [[nodiscard]] bool syncs_buffers() const { return require_forward_param_sync && kwargs.broadcast_buffers && !buffers.empty(); }
};

DistributedDataParallel::DistributedDataParallel(ModelTensors tensors, Group group, const DistributedDataParallelKwargs& kwargs,
                                                 std::shared_ptr<StepListener> listener)
    : state_(std::make_unique<State>(State{std::move(group), kwargs, std::move(listener)})) {
  std::unordered_map<size_t, std::string> names;
  auto replicas = std::make_shared<NamedTensors>();
  for (auto& [name, parameter] : tensors.parameters) {
    if (!parameter.requires_grad()) continue;
    names.emplace(state_->parameters.size(), name);
    state_->parameters.push_back(parameter);
    replicas->emplace_back(name, parameter);
  }
  state_->replicas = std::move(replicas);
  state_->buffers = std::move(tensors.buffers);

  // _sync_module_states: parameters (all of them), then buffers, as one list.
  auto states = std::move(tensors.parameters);
  for (std::size_t place = 0; kwargs.broadcast_buffers && place < state_->buffers.size(); ++place) {
    states.emplace_back(fmt::format("buffer {}", place), state_->buffers[place]);
  }
  check_same_model(state_->group, states);
  check_argument(!state_->parameters.empty(),
                 "prepare: the model has no parameter that requires a gradient, so there is nothing to train in parallel; use "
                 "prepare_model(model, {{.evaluation_mode = true}})");
  for (auto& [name, tensor] : states) state_->states.push_back(std::move(tensor));
  state_->broadcast(state_->states);

  const bool one_list_first = kwargs.static_graph || !kwargs.find_unused_parameters;
  const std::int64_t bucket_bytes = kwargs.bucket_cap_mb ? *kwargs.bucket_cap_mb * kMiB : kDefaultBucketBytes;
  const std::int64_t first_bucket_bytes = kwargs.bucket_cap_mb ? bucket_bytes : kFirstBucketBytes;
  std::vector<size_t> limits{std::numeric_limits<std::int64_t>::max()};
  if (!one_list_first) {
    limits = kwargs.bucket_cap_mb ? std::vector<size_t>{static_cast<size_t>(bucket_bytes)}
                                  : std::vector<size_t>{static_cast<size_t>(kFirstBucketBytes), static_cast<size_t>(bucket_bytes)};
  }
  const std::vector<bool> expect_sparse(state_->parameters.size(), false);
  auto [buckets, bucket_limits] = c10d::compute_bucket_assignment_by_size(state_->parameters, limits, expect_sparse);
  std::reverse(buckets.begin(), buckets.end());
  state_->reducer = std::make_shared<c10d::Reducer>(
      state_->parameters, std::move(buckets), state_->group.process_group(), expect_sparse, bucket_bytes,
      kwargs.find_unused_parameters, kwargs.gradient_as_bucket_view, std::move(names), first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  state_->logger = std::make_shared<c10d::Logger>(state_->reducer);
  state_->reducer->set_logger(state_->logger);
  if (kwargs.static_graph) state_->reducer->set_static_graph();
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::before_forward() {
  const bool grad_enabled = c10::GradMode::is_enabled();
  auto& state = *state_;
  if (grad_enabled && require_backward_grad_sync) state.reducer->prepare_for_forward();
  if (state.joins) wait_for_notices();
  if (state.joins && state.notifies) state.notify(1);
  if (grad_enabled || state.joins) state.reducer->rebuild_buckets();
  // Rank 0 may have no more batches, and old buffers.
  if (state.syncs_buffers()) state.broadcast(state.buffers, state.joins ? state.agree_on_rank(/*is_candidate=*/true) : 0);
  if (state.joins) state.notify(grad_enabled && require_backward_grad_sync ? 1 : 0);
}

void DistributedDataParallel::wait_for_notices() {
  for (auto& [tensor, work] : state_->notices) work.wait();
  state_->notices.clear();
}

void DistributedDataParallel::begin_join(bool notifies) {
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

int DistributedDataParallel::num_taking_part() {
  auto count = state_->flag(0);
  state_->group.all_reduce(count).wait();
  return static_cast<int>(count.item<float>());
}

// _DDPJoinHook.main_hook.
void DistributedDataParallel::shadow_step() {
  auto& state = *state_;
  state.reducer->rebuild_buckets();
  if (state.syncs_buffers()) state.broadcast(state.buffers, state.agree_on_rank(/*is_candidate=*/false));
  auto syncs_backward = state.flag(0);
  state.group.all_reduce(syncs_backward).wait();
  state.require_forward_param_sync = syncs_backward.item<float>() != 0;
  if (!state.require_forward_param_sync) return;
  // The others' hook is an all-reduce of each bucket; its work is waited for, since a future is not known to a simulator.
  std::vector<Work> reductions;
  for (auto& bucket : state.reducer->get_grad_buckets(/*return_zero_tensors=*/true)) reductions.push_back(state.group.all_reduce(bucket.getBufferRef()));
  for (auto& reduction : reductions) reduction.wait();
  if (state.kwargs.find_unused_parameters) {
    // Left as it is, it holds what its last step reduced it to, or what memory held before.
    auto used = state.reducer->get_local_used_map_on_device().zero_();
    state.group.all_reduce(used).wait();
  }
  state.reducer->push_rebuilt_params_for_all_indices();
}

void DistributedDataParallel::sync_final_model(bool is_last) { state_->broadcast(state_->states, state_->agree_on_rank(is_last)); }

void DistributedDataParallel::after_forward(const std::vector<at::Tensor>& outputs) {
  if (!c10::GradMode::is_enabled() || !require_backward_grad_sync) {
    state_->require_forward_param_sync = false;
    return;
  }
  state_->require_forward_param_sync = true;
  if (state_->listener) state_->listener->will_synchronize(state_->replicas);
  const bool search = state_->kwargs.find_unused_parameters && !state_->kwargs.static_graph;
  state_->reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>{});
}

}  // namespace accel
