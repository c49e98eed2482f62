#include "reference/parallel/buffer_sync.hpp"

#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <algorithm>
#include <string_view>

#include "reference/comm/exchanged_tensor.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {
namespace {

constexpr std::int64_t kBroadcastBucketBytes = 250 << 20;  // as in torch/nn/parallel/distributed.py

// A NaN equals itself, and 0 differs from -0.
bool have_same_bits(const at::Tensor& left, const at::Tensor& right) {
  const auto bytes = [](const at::Tensor& tensor) {
    return tensor.detach().reshape({-1}).contiguous().view(at::kByte);
  };
  return bytes(left).equal(bytes(right));
}

}  // namespace

void broadcast_tensors(const Group& group, const std::vector<at::Tensor>& tensors, int root) {
  std::vector<at::Tensor> detached;
  for (const auto& tensor : tensors) detached.push_back(as_exchanged(tensor.detach()));
  if (!detached.empty()) c10d::broadcast_coalesced(group.process_group(), detached, kBroadcastBucketBytes, root);
}

bool BufferSync::is_statistic(const at::Tensor& buffer) const {
  return std::ranges::any_of(buffers_.statistics, [&](const auto& own) { return own.is_same(buffer); });
}

void BufferSync::receive(const Group& group, ReceiveOptions options) {
  const c10::NoGradGuard no_grad;
  const bool keeps_graphs = has_graph_ && !options.is_joined;
  std::vector<at::Tensor> targets;
  std::vector<std::size_t> copied;
  for (std::size_t place = 0; place < buffers_.tensors.size(); ++place) {
    const auto& buffer = buffers_.tensors[place];
    if (is_statistic(buffer)) {
      targets.push_back(buffer.variable_data());  // the same memory with a separate version
    } else if (keeps_graphs) {
      targets.push_back(buffer.detach().clone());
      copied.push_back(place);
    } else {
      targets.push_back(buffer);
    }
  }
  broadcast_tensors(group, targets, options.root);
  if (!keeps_graphs) changed_.clear();
  if (!copied.empty()) write_changed(group, copied, targets);
}

// On every rank if on any: then a graph that needs the old values fails on every rank.
void BufferSync::write_changed(const Group& group, const std::vector<std::size_t>& places,
                               const std::vector<at::Tensor>& received) {
  std::vector<std::int64_t> differs;
  for (const auto place : places) differs.push_back(have_same_bits(received[place], buffers_.tensors[place]) ? 0 : 1);
  auto on_any_rank = at::tensor(differs, at::kLong).to(buffers_.tensors[places.front()].device());
  group.all_reduce(on_any_rank, ReduceOp::kMax).wait();
  const auto is_changed = on_any_rank.cpu();
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (is_changed[static_cast<std::int64_t>(i)].item<std::int64_t>() == 0) continue;
    buffers_.tensors[places[i]].detach().copy_(received[places[i]]);
    changed_.push_back(fmt::format("'{}'", buffers_.names[places[i]]));
  }
}

void BufferSync::explain(const std::exception& error) const {
  const bool is_about_versions =
      std::string_view(error.what()).find("modified by an inplace operation") != std::string_view::npos;
  check_state(
      !is_about_versions || changed_.empty(),
      "backward: the buffers {} have other values than in an earlier forward pass whose graph needs them: before "
      "every forward pass DDP copies the buffers of rank 0, and several forward passes preceded this backward "
      "pass; set ddp_kwargs: broadcast_buffers = false, or call the model once with all inputs, or backward "
      "after each call",
      listed(changed_, ", "));
}

}  // namespace accel
