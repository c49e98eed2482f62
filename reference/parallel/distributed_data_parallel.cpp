#include "reference/parallel/distributed_data_parallel.hpp"

#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <algorithm>
#include <limits>

#include "reference/core/errors.hpp"

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
  std::vector<at::Tensor> parameters, buffers;
  std::unique_ptr<c10d::Reducer> reducer;
  bool require_forward_param_sync = true;

  void broadcast(const std::vector<at::Tensor>& tensors) {
    if (!tensors.empty()) c10d::broadcast_coalesced(group.process_group(), detached(tensors), kBroadcastBucketBytes, /*rank=*/0);
  }
};

DistributedDataParallel::DistributedDataParallel(ModelTensors tensors, Group group, const DistributedDataParallelKwargs& kwargs)
    : state_(std::make_unique<State>(State{std::move(group), kwargs})) {
  std::unordered_map<size_t, std::string> names;
  for (auto& [name, parameter] : tensors.parameters) {
    if (!parameter.requires_grad()) continue;
    names.emplace(state_->parameters.size(), name);
    state_->parameters.push_back(parameter);
  }
  check_argument(!state_->parameters.empty(),
                 "prepare: the model has no parameter that requires a gradient, so there is nothing to train in parallel; use "
                 "prepare_model(model, {{.evaluation_mode = true}})");
  state_->buffers = std::move(tensors.buffers);

  c10d::verify_params_across_processes(state_->group.process_group(), state_->parameters, std::nullopt);
  // _sync_module_states: parameters (all of them), then buffers, as one list.
  std::vector<at::Tensor> module_states;
  for (auto& [name, parameter] : tensors.parameters) module_states.push_back(parameter);
  if (kwargs.broadcast_buffers) module_states.insert(module_states.end(), state_->buffers.begin(), state_->buffers.end());
  state_->broadcast(module_states);

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
  state_->reducer = std::make_unique<c10d::Reducer>(
      state_->parameters, std::move(buckets), state_->group.process_group(), expect_sparse, bucket_bytes,
      kwargs.find_unused_parameters, kwargs.gradient_as_bucket_view, std::move(names), first_bucket_bytes,
      /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false, /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  if (kwargs.static_graph) state_->reducer->set_static_graph();
}

DistributedDataParallel::~DistributedDataParallel() = default;

void DistributedDataParallel::before_forward() {
  const bool grad_enabled = c10::GradMode::is_enabled();
  if (grad_enabled && require_backward_grad_sync) state_->reducer->prepare_for_forward();
  if (grad_enabled) state_->reducer->rebuild_buckets();
  if (state_->require_forward_param_sync && state_->kwargs.broadcast_buffers) state_->broadcast(state_->buffers);
}

void DistributedDataParallel::after_forward(const std::vector<at::Tensor>& outputs) {
  if (!c10::GradMode::is_enabled() || !require_backward_grad_sync) {
    state_->require_forward_param_sync = false;
    return;
  }
  state_->require_forward_param_sync = true;
  const bool search = state_->kwargs.find_unused_parameters && !state_->kwargs.static_graph;
  state_->reducer->prepare_for_backward(search ? outputs : std::vector<at::Tensor>{});
}

}  // namespace accel
