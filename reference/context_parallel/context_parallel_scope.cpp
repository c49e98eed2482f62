#include "reference/context_parallel/context_parallel_scope.hpp"

#include <ATen/ATen.h>

#include <algorithm>

#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/warnings.hpp"

namespace accel::parallel {
namespace {

std::ptrdiff_t count_of(const at::Tensor& tensor, const std::vector<at::Tensor>& tensors) {
  return std::count_if(tensors.begin(), tensors.end(), [&](const at::Tensor& other) { return other.is_same(tensor); });
}

SequencePlan plan_of(const ContextParallelOptions& options, const Group& group) {
  const auto& buffers = options.buffers;
  const auto& dims = options.buffer_seq_dims;
  check_argument(!buffers.empty() && buffers.size() == dims.size(),
                 "maybe_context_parallel: {} buffers and {} buffer_seq_dims; expected at least one buffer, and one "
                 "dimension for each",
                 buffers.size(), dims.size());
  const auto length = buffers[0].size(dims[0]);
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    check_argument(buffers[i].size(dims[i]) == length,
                   "maybe_context_parallel: dimension {} of buffer {} has {} elements, and the sequence of buffer 0 "
                   "has {}; expected equal lengths",
                   dims[i], i, buffers[i].size(dims[i]), length);
    check_argument(!buffers[i].requires_grad() && count_of(buffers[i], buffers) == 1,
                   "maybe_context_parallel: buffer {} requires gradients or is passed twice; expected different inputs "
                   "of the model. shard_sequence divides a tensor that requires gradients",
                   i);
  }
  for (const auto& tensor : options.no_restore_buffers)
    check_argument(count_of(tensor, buffers) == 1,
                   "maybe_context_parallel: no_restore_buffers has a tensor of shape {} that is not one of buffers; "
                   "expected a subset",
                   c10::str(tensor.sizes()));
  // One rank has no chunks, so that any length divides.
  const auto order = group.size() == 1 ? SequenceOrder::kContiguous : SequenceOrder::kZigzag;
  return SequencePlan({.length = length, .num_ranks = group.size(), .order = order});
}

}  // namespace

ContextParallelScope::ContextParallelScope(const DeviceMesh& mesh, const ContextParallelOptions& options)
    : plan_(plan_of(options, mesh["cp"])),
      position_ids_(parallel::position_ids(plan_, mesh["cp"].rank(), options.buffers[0].device())) {
  if (plan_.num_ranks() == 1) return;
  for (std::size_t i = 0; i < options.buffers.size(); ++i) {
    auto buffer = options.buffers[i];
    auto complete = buffer.detach();
    buffer.set_data(shard_sequence(complete, options.buffer_seq_dims[i], plan_, mesh["cp"].rank()));
    if (count_of(buffer, options.no_restore_buffers) == 0)
      restored_.push_back({std::move(buffer), std::move(complete)});
  }
}

ContextParallelScope::~ContextParallelScope() {
  for (auto& [buffer, complete] : restored_) buffer.set_data(complete);
}

ContextParallelScope maybe_context_parallel(const DeviceMesh& mesh, const ContextParallelOptions& options) {
  if (mesh["cp"].size() == 1)
    warn_once(
        "maybe_context_parallel has no effect, because context parallelism is off; set parallelism_config.cp_size to "
        "more than 1");
  return ContextParallelScope(mesh, options);
}

}  // namespace accel::parallel
