#include "backends/process/process_backend.hpp"

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <numeric>

#include "backends/process/pending_works.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/core/errors.hpp"

namespace accel::process {
namespace {

using c10d::OpType;

// Of this process; a work or a group is named by its number.
std::uint64_t next_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

constexpr std::size_t kAbandonedMax = 16;  // works that were never waited for, before their memory is looked after

// A sparse result is no buffer: only its parts are exchanged.
std::vector<UsedMemory> memory_of(const std::vector<Buffer>& buffers, const ProcessWork::Results& results) {
  std::vector<UsedMemory> memory;
  for (const auto& list : results) {
    if (!list.empty() && list.front().layout() == at::kSparse) memory = used_memory(list, /*are_written=*/true);
  }
  for (const auto& buffer : buffers) {
    for (auto& used : used_memory({buffer.tensor}, buffer.is_written)) memory.push_back(std::move(used));
  }
  return memory;
}

int kind_of(const c10d::ReduceOp& op) { return static_cast<int>(static_cast<c10d::ReduceOp::RedOpType>(op)); }

}  // namespace

ProcessBackend::ProcessBackend(std::shared_ptr<RankLink> link, std::shared_ptr<const ProgramHooks> hooks, int rank,
                               int size)
    : c10d::Backend(rank, size), link_(std::move(link)), hooks_(std::move(hooks)) {}

void ProcessBackend::set_group(std::string name, std::vector<int> ranks) {
  name_ = std::move(name);
  ranks_ = std::move(ranks);
}

// PyTorch fills in the options after the constructor; no ranks mean all of them.
std::uint32_t ProcessBackend::group() {
  if (group_ != 0) return group_;
  if (name_.empty()) {
    for (const auto rank : options_->global_ranks_in_group) ranks_.push_back(static_cast<int>(rank));
    name_ = options_->group_name;
  }
  if (ranks_.empty()) {
    ranks_.resize(getSize());
    std::iota(ranks_.begin(), ranks_.end(), 0);
  }
  // The name of the default group in PyTorch is a number.
  const bool is_world = getSize() == link_->num_ranks() && (name_.empty() || name_ == "0");
  const auto number = static_cast<std::uint32_t>(next_number());
  link_->ask(begin_request(Request::kGroup, *hooks_)
                 .put(number)
                 .put(is_world ? std::string_view("world") : std::string_view(name_))
                 .put_list(ranks_));
  return group_ = number;
}

PlacedTensor ProcessBackend::place(const at::Tensor& tensor, bool is_read, bool is_written, bool is_async,
                                   std::vector<Buffer>& buffers) const {
  check_argument(
      tensor.layout() == at::kStrided,
      "expected a dense tensor, got a {} one; only all_reduce accepts sparse tensors (COO), as with Gloo; call "
      "tensor.to_dense()",
      c10::str(tensor.layout()));
  check_argument(tensor.device().is_cpu(), "a rank that is a process exchanges tensors of the CPU, got one on {}",
                 tensor.device().str());
  auto placed = take_place(*link_, tensor);
  // A tensor with gaps is also read where it is written: the bytes between its elements go there and back.
  if (is_read || !tensor.is_non_overlapping_and_dense())
    std::memcpy(link_->at(placed.offset), tensor.const_data_ptr(), placed.bytes);
  buffers.push_back({.tensor = tensor,
                     .offset = placed.offset,
                     .bytes = placed.bytes,
                     .is_written = is_written,
                     .sample = is_async ? sample_fingerprint(tensor) : 0});
  return placed;
}

ProcessBackend::WorkPtr ProcessBackend::run(OpType type, bool is_async, Operation operation, const Lists& inputs,
                                            const Lists& outputs, Writes writes, Lists results) {
  operation.group = group();
  if (link_->num_abandoned() >= kAbandonedMax) free_abandoned(*link_, *hooks_);
  std::vector<Buffer> buffers;
  const auto place_all = [&](const Lists& lists, bool is_read, bool is_written) {
    std::vector<std::vector<PlacedTensor>> placed;
    for (const auto& list : lists) {
      auto& own = placed.emplace_back();
      for (const auto& tensor : list) own.push_back(place(tensor, is_read, is_written, is_async, buffers));
    }
    return placed;
  };
  try {
    operation.inputs = place_all(inputs, /*is_read=*/true, writes == Writes::kInputs);
    operation.outputs = place_all(outputs, /*is_read=*/false, writes == Writes::kOutputs);
  } catch (...) {
    for (const auto& buffer : buffers) link_->give(buffer.offset);
    throw;
  }
  auto memory = memory_of(buffers, results);
  pending_works::check(memory, c10d::opTypeToString(type));
  ++sequence_;
  const auto number = next_number();
  auto message = begin_request(Request::kCall, *hooks_).put(number);
  // A call that is not asynchronous waits at once: the proxy is woken once for both.
  message << operation;
  is_async ? link_->post(message) : link_->post_before_next(message);
  auto work = c10::make_intrusive<ProcessWork>(link_, hooks_, number, type, std::move(buffers), std::move(results));
  if (is_async) pending_works::add(link_, number, std::move(memory));
  return work;
}

ProcessBackend::WorkPtr ProcessBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) {
  return run(OpType::BROADCAST, options.asyncOp,
             {.method = Method::kBroadcast, .root = static_cast<int>(options.rootRank)}, {tensors}, {},
             options.rootRank == getRank() ? Writes::kOutputs : Writes::kInputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) {
  if (tensors.size() == 1 && tensors.front().layout() == at::kSparse) return allreduce_sparse(tensors, options);
  return run(OpType::ALLREDUCE, options.asyncOp, {.method = Method::kAllReduce, .reduce_op = kind_of(options.reduceOp)},
             {tensors}, {}, Writes::kInputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) {
  const auto tensor = tensors.front().detach().coalesce();
  return run(
      OpType::_ALLREDUCE_SPARSE, options.asyncOp,
      {.method = Method::kAllReduceSparse, .reduce_op = kind_of(options.reduceOp), .sizes = tensor.sizes().vec()},
      {{tensor.indices(), tensor.values()}}, {}, Writes::kOutputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::allreduce_coalesced(Tensors& tensors,
                                                            const c10d::AllreduceCoalescedOptions& options) {
  return run(OpType::ALLREDUCE_COALESCED, options.asyncOp,
             {.method = Method::kAllReduceCoalesced, .reduce_op = kind_of(options.reduceOp)}, {tensors}, {},
             Writes::kInputs, {tensors});
}

// On the other ranks Gloo leaves partial sums, and so does the simulator.
ProcessBackend::WorkPtr ProcessBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& options) {
  return run(
      OpType::REDUCE, options.asyncOp,
      {.method = Method::kReduce, .reduce_op = kind_of(options.reduceOp), .root = static_cast<int>(options.rootRank)},
      {tensors}, {}, Writes::kInputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::allgather(std::vector<Tensors>& outputs, Tensors& inputs,
                                                  const c10d::AllgatherOptions& options) {
  return run(OpType::ALLGATHER, options.asyncOp, {.method = Method::kAllGather}, {inputs}, outputs, Writes::kOutputs,
             outputs);
}

ProcessBackend::WorkPtr ProcessBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                        const c10d::AllgatherOptions& options) {
  return run(OpType::_ALLGATHER_BASE, options.asyncOp, {.method = Method::kAllGatherBase}, {{input}}, {{output}},
             Writes::kOutputs, {{output}});
}

ProcessBackend::WorkPtr ProcessBackend::allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                                                            const c10d::AllgatherOptions& options) {
  return run(OpType::ALLGATHER_COALESCED, options.asyncOp, {.method = Method::kAllGatherCoalesced}, {inputs}, outputs,
             Writes::kOutputs, outputs);
}

ProcessBackend::WorkPtr ProcessBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                        const c10d::AllgatherOptions& options) {
  return run(OpType::COALESCED, options.asyncOp, {.method = Method::kAllGatherIntoTensorCoalesced}, {inputs}, {outputs},
             Writes::kOutputs, {outputs});
}

ProcessBackend::WorkPtr ProcessBackend::gather(std::vector<Tensors>& outputs, Tensors& inputs,
                                               const c10d::GatherOptions& options) {
  return run(OpType::GATHER, options.asyncOp, {.method = Method::kGather, .root = static_cast<int>(options.rootRank)},
             {inputs}, outputs, Writes::kOutputs, outputs);
}

ProcessBackend::WorkPtr ProcessBackend::scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                const c10d::ScatterOptions& options) {
  return run(OpType::SCATTER, options.asyncOp, {.method = Method::kScatter, .root = static_cast<int>(options.rootRank)},
             inputs, {outputs}, Writes::kOutputs, {outputs});
}

ProcessBackend::WorkPtr ProcessBackend::reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                                                       const c10d::ReduceScatterOptions& options) {
  return run(OpType::REDUCE_SCATTER, options.asyncOp,
             {.method = Method::kReduceScatter, .reduce_op = kind_of(options.reduceOp)}, inputs, {outputs},
             Writes::kOutputs, {outputs});
}

ProcessBackend::WorkPtr ProcessBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                             const c10d::ReduceScatterOptions& options) {
  return run(OpType::_REDUCE_SCATTER_BASE, options.asyncOp,
             {.method = Method::kReduceScatterBase, .reduce_op = kind_of(options.reduceOp)}, {{input}}, {{output}},
             Writes::kOutputs, {{output}});
}

ProcessBackend::WorkPtr ProcessBackend::reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                        const c10d::ReduceScatterOptions& options) {
  return run(OpType::COALESCED, options.asyncOp,
             {.method = Method::kReduceScatterTensorCoalesced, .reduce_op = kind_of(options.reduceOp)}, {inputs},
             {outputs}, Writes::kOutputs, {outputs});
}

ProcessBackend::WorkPtr ProcessBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                      std::vector<std::int64_t>& output_splits,
                                                      std::vector<std::int64_t>& input_splits,
                                                      const c10d::AllToAllOptions& options) {
  return run(OpType::ALLTOALL_BASE, options.asyncOp,
             {.method = Method::kAllToAllBase, .input_splits = input_splits, .output_splits = output_splits}, {{input}},
             {{output}}, Writes::kOutputs, {{output}});
}

ProcessBackend::WorkPtr ProcessBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                                 const c10d::AllToAllOptions& options) {
  return run(OpType::ALLTOALL, options.asyncOp, {.method = Method::kAllToAll}, {inputs}, {outputs}, Writes::kOutputs,
             {outputs});
}

ProcessBackend::WorkPtr ProcessBackend::send(Tensors& tensors, int destination, int tag) {
  return run(OpType::SEND, /*is_async=*/true, {.method = Method::kSend, .root = destination, .tag = tag}, {tensors}, {},
             Writes::kOutputs, {});
}

ProcessBackend::WorkPtr ProcessBackend::recv(Tensors& tensors, int source, int tag) {
  return run(OpType::RECV, /*is_async=*/true, {.method = Method::kRecv, .root = source, .tag = tag}, {}, {tensors},
             Writes::kOutputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::recvAnysource(Tensors& tensors, int tag) {
  return run(OpType::RECVANYSOURCE, /*is_async=*/true, {.method = Method::kRecvAnySource, .tag = tag}, {}, {tensors},
             Writes::kOutputs, {tensors});
}

ProcessBackend::WorkPtr ProcessBackend::barrier(const c10d::BarrierOptions& options) {
  return run(OpType::BARRIER, options.asyncOp, {.method = Method::kBarrier}, {}, {}, Writes::kOutputs, {});
}

void ProcessBackend::monitoredBarrier(const c10d::BarrierOptions&, bool /*wait_all_ranks*/) {
  run(OpType::BARRIER, /*is_async=*/false, {.method = Method::kMonitoredBarrier}, {}, {}, Writes::kOutputs, {})
      ->wait(kNoTimeout);
}

}  // namespace accel::process
