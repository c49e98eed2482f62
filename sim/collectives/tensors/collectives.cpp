// Each function reproduces the bits of ProcessGroupGloo, not only its result up to rounding: reductions run in
// the ring's order, and quirks (bytes of a bool sum, partial results of reduce) are kept.
#include "sim/collectives/tensors/collectives.hpp"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <cstring>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

// Returns the rows to or from each rank; without explicit splits, equal parts.
std::vector<std::int64_t> splits_of(const std::vector<std::int64_t>& given, const at::Tensor& tensor,
                                    std::size_t num_ranks) {
  return given.empty() ? std::vector<std::int64_t>(num_ranks, tensor.size(0) / static_cast<std::int64_t>(num_ranks))
                       : given;
}

// Gloo reduces complex numbers as pairs.
at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach().resolve_conj()) : tensor;
}

// One flat host buffer in memory order, as Gloo uses: the tensor itself if it is dense and on the host, else a
// copy that `copy_back` writes to the tensors afterwards.
class HostBuffer {
 public:
  explicit HostBuffer(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (auto& tensor : tensors_) tensor = as_real(tensor);
    const auto& first = tensors_.front();
    direct_ = tensors_.size() == 1 && first.device().is_cpu() && first.is_non_overlapping_and_dense();
    if (direct_) {
      flat_ = first.is_contiguous() ? first : first.detach().as_strided({first.numel()}, {1});
      return;
    }
    std::vector<at::Tensor> pieces;
    for (const auto& tensor : tensors_) pieces.push_back(tensor.detach().to(at::kCPU).reshape({-1}));
    flat_ = tensors_.size() == 1 ? pieces.front().clone() : at::cat(pieces);
  }

  void* data() { return flat_.data_ptr(); }
  [[nodiscard]] std::int64_t numel() const { return flat_.numel(); }
  [[nodiscard]] std::int64_t element_size() const { return flat_.element_size(); }
  [[nodiscard]] at::ScalarType dtype() const { return flat_.scalar_type(); }

  void copy_back() {
    if (direct_) return;
    std::int64_t offset = 0;
    for (auto& tensor : tensors_) {
      tensor.detach().copy_(flat_.slice(0, offset, offset + tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  at::Tensor flat_;
  bool direct_ = false;
};

// Below this many bytes over all ranks, waking another core takes longer than it saves.
constexpr std::int64_t kParallelBytes = 1 << 20;

// Copies bytes directly where possible: `copy_` costs microseconds per call, which dominates P * P small copies.
void copy_plain(const at::Tensor& to, const at::Tensor& from) {
  const bool is_plain = to.is_cpu() && from.is_cpu() && to.scalar_type() == from.scalar_type() &&
                        to.sizes() == from.sizes() && to.is_contiguous() && from.is_contiguous();
  if (!is_plain) {
    to.copy_(from);
  } else if (to.numel() > 0) {
    std::memcpy(to.data_ptr(), from.const_data_ptr(), to.nbytes());
  }
}

// Plans by the number of elements of the flat buffer: in the coalesced form chunk boundaries may lie inside a tensor.
void ring(std::vector<HostBuffer>& buffers, ReduceKind kind, const ParallelFor& parallel_for) {
  std::vector<void*> data;
  for (auto& buffer : buffers) data.push_back(buffer.data());
  const auto plan =
      plan_all_reduce(buffers.front().numel(), buffers.front().element_size(), static_cast<int>(buffers.size()));
  ring_all_reduce(buffers.front().dtype(), kind.reduction, plan, data, parallel_for);
  for (auto& buffer : buffers) buffer.copy_back();
}

// A sum of bools may be a byte of 2 or more, which `copy_` would change to 1; Gloo's list form keeps the byte.
void copy_bytes(at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() == at::kBool && to.is_contiguous()) {
    to.view(at::kByte).copy_(from.contiguous().view(at::kByte));
  } else {
    to.copy_(from);
  }
}

// Gloo has no average: PyTorch divides the sum afterwards, and the rounding must be the same.
void divide(const std::vector<at::Tensor>& tensors, ReduceKind kind, std::size_t num_ranks) {
  if (!kind.average) return;
  for (const auto& tensor : tensors) tensor.detach().div_(static_cast<std::int64_t>(num_ranks));
}

// Works in place on every rank's `inputs`, which are reduced as one flat buffer (one tensor: the plain form; several:
// coalesced).
void all_reduce(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
  const c10::NoGradGuard no_grad;
  std::vector<HostBuffer> buffers;
  for (auto* rank : ranks) buffers.emplace_back(rank->inputs);
  ring(buffers, kind, parallel_for);
  for (auto* rank : ranks) divide(rank->inputs, kind, ranks.size());
}

// ProcessGroupGloo gathers all indices and values and adds them on every rank in rank order; one sum for all
// gives the same bits. Every rank's `inputs[0]` is coalesced; the sum goes to its `outputs[0]`.
void all_reduce_sparse(AllBuffers ranks) {
  const c10::NoGradGuard no_grad;
  auto sum = ranks[0]->inputs[0].clone();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) sum.add_(ranks[rank]->inputs[0]);
  sum = sum.coalesce();
  for (auto* rank : ranks) rank->outputs[0].copy_(sum);
}

// Works in place on `inputs[0]`; ranks other than `root` keep partial results, as in Gloo.
void reduce(AllBuffers ranks, ReduceKind kind, int root, const ParallelFor& parallel_for) {
  const c10::NoGradGuard no_grad;
  std::vector<HostBuffer> buffers;
  for (auto* rank : ranks) buffers.emplace_back(rank->inputs);
  std::vector<void*> data;
  for (auto& buffer : buffers) data.push_back(buffer.data());
  const auto plan =
      plan_reduce(buffers.front().numel(), buffers.front().element_size(), static_cast<int>(ranks.size()));
  ring_reduce(buffers.front().dtype(), kind.reduction, plan, data, root, parallel_for);
  for (auto& buffer : buffers) buffer.copy_back();
  for (auto* rank : ranks) divide(rank->inputs, kind, ranks.size());
}

// Copies `inputs[0]` of `root` to every rank's `inputs[0]`; the tree of Gloo's algorithm only matters to the time, not
// to the bits.
void broadcast(AllBuffers ranks, int root) {
  const c10::NoGradGuard no_grad;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (static_cast<int>(rank) != root) ranks[rank]->inputs[0].copy_(ranks[root]->inputs[0]);
  }
}

// For k inputs: rank r's `inputs[i]` goes to every rank's `outputs[r * k + i]`. P * P copies: 17 million on 4,096
// ranks, most of them of a few bytes, hence the parallel loop over receivers.
void all_gather(AllBuffers ranks, const ParallelFor& parallel_for) {
  const auto per_rank = ranks[0]->inputs.size();
  parallel_for(static_cast<std::int64_t>(ranks.size()), [&](std::int64_t receiver) {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
    for (std::size_t sender = 0; sender < ranks.size(); ++sender) {
      for (std::size_t item = 0; item < per_rank; ++item) {
        copy_plain(ranks[receiver]->outputs[sender * per_rank + item], ranks[sender]->inputs[item]);
      }
    }
  });
}

// Concatenates once and copies the result to each rank: P copies instead of P * P. The temporary also allows a
// rank's input to be a part of its output.
void all_gather_into_tensor(AllBuffers ranks, const ParallelFor& parallel_for) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (auto* sender : ranks) parts.push_back(sender->inputs[0].reshape({-1}));
  const auto whole = at::cat(parts);
  const auto receive = [&](std::int64_t receiver) {
    const at::DisableRecordFunctionGuard unwatched;
    auto& output = ranks[receiver]->outputs[0];
    copy_plain(output, whole.view(output.sizes()));
  };
  const auto num_ranks = static_cast<std::int64_t>(ranks.size());
  if (static_cast<std::int64_t>(whole.nbytes()) * num_ranks >= kParallelBytes) {
    parallel_for(num_ranks, receive);
  } else {
    for (std::int64_t receiver = 0; receiver < num_ranks; ++receiver) receive(receiver);
  }
}

// Rank r's `inputs[0]` goes to `outputs[r]` of `root`.
void gather(AllBuffers ranks, int root) {
  const c10::NoGradGuard no_grad;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[root]->outputs[rank].copy_(ranks[rank]->inputs[0]);
}

// `inputs[r]` of `root` goes to rank r's `outputs[0]`.
void scatter(AllBuffers ranks, int root) {
  const c10::NoGradGuard no_grad;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) ranks[rank]->outputs[0].copy_(ranks[root]->inputs[rank]);
}

// One all-reduce per slot, as PyTorch does over Gloo; rank r keeps slot r in `outputs[0]`. Inputs are copied because
// the ring overwrites its buffers.
void reduce_scatter(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
  const c10::NoGradGuard no_grad;
  for (std::size_t slot = 0; slot < ranks.size(); ++slot) {
    std::vector<HostBuffer> buffers;
    std::vector<at::Tensor> copies;
    for (auto* rank : ranks) copies.push_back(rank->inputs[slot].detach().to(at::kCPU).contiguous().clone());
    for (const auto& copy : copies) buffers.emplace_back(std::vector<at::Tensor>{copy});
    ring(buffers, kind, parallel_for);
    divide({copies[slot]}, kind, ranks.size());
    copy_bytes(ranks[slot]->outputs[0], copies[slot].view(ranks[slot]->outputs[0].sizes()));
  }
}

// One all-reduce over each complete `inputs[i]`; rank r keeps part r in `outputs[i]`. The sum is computed once, into
// `total`, instead of into every rank's buffer.
void reduce_scatter_tensor(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
  const c10::NoGradGuard no_grad;
  for (std::size_t item = 0; item < ranks[0]->inputs.size(); ++item) {
    std::vector<at::Tensor> inputs;
    std::vector<void*> data;
    for (auto* rank : ranks) inputs.push_back(rank->inputs[item].detach().to(at::kCPU).contiguous());
    for (const auto& input : inputs) data.push_back(input.data_ptr());
    const auto total = at::empty_like(inputs.front());
    const auto sum = as_real(total);
    const auto plan = plan_all_reduce(sum.numel(), sum.element_size(), static_cast<int>(ranks.size()));
    ring_sum(sum.scalar_type(), kind.reduction, plan, data, sum.data_ptr(), parallel_for);
    divide({total}, kind, ranks.size());
    const auto parts = total.view({static_cast<std::int64_t>(ranks.size()), -1});
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      auto& output = ranks[rank]->outputs[item];
      output.copy_(parts[static_cast<std::int64_t>(rank)].view(output.sizes()));
    }
  }
}

// Compares rows first, then elements: equal rows of different widths also cannot be copied.
std::vector<SplitMismatch> all_to_all_single_mismatches(AllBuffers ranks) {
  std::vector<std::vector<std::int64_t>> sent, received;
  for (const auto* rank : ranks) {
    sent.push_back(splits_of(rank->input_splits, rank->inputs[0], ranks.size()));
    received.push_back(splits_of(rank->output_splits, rank->outputs[0], ranks.size()));
  }
  std::vector<SplitMismatch> mismatches;
  for (int from = 0; from < static_cast<int>(ranks.size()); ++from) {
    for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
      const auto of_row = c10::multiply_integers(ranks[from]->inputs[0].sizes().slice(1)),
                 expected_of_row = c10::multiply_integers(ranks[to]->outputs[0].sizes().slice(1));
      if (sent[from][to] != received[to][from]) {
        mismatches.push_back({from, to, sent[from][to], received[to][from]});
      } else if (sent[from][to] > 0 && of_row != expected_of_row) {
        mismatches.push_back({from, to, sent[from][to] * of_row, received[to][from] * expected_of_row});
      }
    }
  }
  return mismatches;
}

std::vector<SplitMismatch> all_to_all_mismatches(AllBuffers ranks) {
  std::vector<SplitMismatch> mismatches;
  for (int from = 0; from < static_cast<int>(ranks.size()); ++from) {
    for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
      const auto &sent = ranks[from]->inputs[to], &received = ranks[to]->outputs[from];
      if (sent.sizes() != received.sizes()) mismatches.push_back({from, to, sent.numel(), received.numel()});
    }
  }
  return mismatches;
}

// Rows of `inputs[0]` by `input_splits` go to rows of `outputs[0]` by `output_splits`. Receivers fill their outputs in
// the order of the senders, which is the order of their splits.
void all_to_all_single(AllBuffers ranks) {
  const c10::NoGradGuard no_grad;
  std::vector<std::int64_t> filled(ranks.size());  // rows already written, by receiver
  for (const auto* from : ranks) {
    const auto sent = splits_of(from->input_splits, from->inputs[0], ranks.size());
    std::int64_t first = 0;
    for (std::size_t to = 0; to < ranks.size(); ++to) {
      auto rows = ranks[to]->outputs[0].slice(0, filled[to], filled[to] + sent[to]);
      rows.copy_(from->inputs[0].slice(0, first, first + sent[to]).reshape(rows.sizes()));
      first += sent[to];
      filled[to] += sent[to];
    }
  }
}

// Rank r's `inputs[s]` goes to rank s's `outputs[r]`.
void all_to_all(AllBuffers ranks) {
  const c10::NoGradGuard no_grad;
  for (std::size_t from = 0; from < ranks.size(); ++from) {
    for (std::size_t to = 0; to < ranks.size(); ++to) ranks[to]->outputs[from].copy_(ranks[from]->inputs[to]);
  }
}

}  // namespace

std::vector<SplitMismatch> split_mismatches(Collective op, AllBuffers ranks) {
  if (op == Collective::kAllToAllSingle) return all_to_all_single_mismatches(ranks);
  return op == Collective::kAllToAll ? all_to_all_mismatches(ranks) : std::vector<SplitMismatch>();
}

void compute(const CollectiveOfAll& collective, AllBuffers ranks, const ParallelFor& parallel_for) {
  const auto& [op, kind, root] = collective;
  switch (op) {
    case Collective::kAllReduce:
      if (ranks[0]->inputs.front().layout() == at::kSparse) return all_reduce_sparse(ranks);
      return all_reduce(ranks, kind, parallel_for);
    case Collective::kAllReduceCoalesced: return all_reduce(ranks, kind, parallel_for);
    case Collective::kBroadcast: return broadcast(ranks, root);
    case Collective::kReduce: return reduce(ranks, kind, root, parallel_for);
    case Collective::kAllGather:
    case Collective::kAllGatherCoalesced:
    case Collective::kAllGatherIntoTensorCoalesced: return all_gather(ranks, parallel_for);
    case Collective::kAllGatherIntoTensor: return all_gather_into_tensor(ranks, parallel_for);
    case Collective::kGather: return gather(ranks, root);
    case Collective::kScatter: return scatter(ranks, root);
    case Collective::kReduceScatter: return reduce_scatter(ranks, kind, parallel_for);
    case Collective::kReduceScatterTensor: return reduce_scatter_tensor(ranks, kind, parallel_for);
    case Collective::kAllToAll: return all_to_all(ranks);
    case Collective::kAllToAllSingle: return all_to_all_single(ranks);
    // A barrier has no tensors, and messages are delivered when they are received.
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier:
    case Collective::kSend:
    case Collective::kRecv:
    case Collective::kCount: break;
  }
}

at::Tensor reduced(const CollectiveOfAll& collective, AllBuffers ranks, std::size_t item) {
  switch (collective.op) {
    case Collective::kReduce: return ranks[collective.root]->inputs[item];
    case Collective::kReduceScatter: return ranks[item]->outputs[0];
    case Collective::kReduceScatterTensor: {
      std::vector<at::Tensor> parts;
      for (const auto* rank : ranks) parts.push_back(rank->outputs[item].flatten());
      return at::cat(parts).view(ranks[0]->inputs[item].sizes());
    }
    default: return ranks[0]->inputs[item];
  }
}

}  // namespace accel::sim
