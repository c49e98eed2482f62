// The functions of collectives.hpp for one kind of tensor, instantiated by host_collectives.cpp and, for at::Tensor, by
// tensor_collectives.cpp in sim/backend.
//
// Each function reproduces the bits of ProcessGroupGloo, not only its result up to rounding: reductions run in
// the ring's order, and quirks (bytes of a bool sum, partial results of reduce) are kept.
#pragma once

#include <cstring>
#include <functional>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/collectives/tensors/collectives.hpp"
#include "sim/collectives/tensors/tensor_algebra.hpp"

namespace accel::sim {

template <typename Tensor>
class CollectivesOf {
  using Algebra = TensorAlgebra<Tensor>;
  using Unobserved = typename Algebra::Unobserved;
  using Tensors = std::vector<Tensor>;
  using AllBuffers = AllBuffersOf<Tensor>;
  using Sizes = std::vector<std::int64_t>;

 public:
  static std::vector<SplitMismatch> split_mismatches(Collective op, AllBuffers ranks) {
    if (op == Collective::kAllToAllSingle) return all_to_all_single_mismatches(ranks);
    return op == Collective::kAllToAll ? all_to_all_mismatches(ranks) : std::vector<SplitMismatch>();
  }

  static void compute(const CollectiveOfAll& collective, AllBuffers ranks, const ParallelFor& parallel_for) {
    const Unobserved unobserved;
    const auto& [op, kind, root] = collective;
    switch (op) {
      case Collective::kAllReduce:
        if (Algebra::is_sparse(ranks[0]->inputs.front())) return all_reduce_sparse(ranks);
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

  static std::vector<bool> nans_of_result(const CollectiveOfAll& collective, AllBuffers ranks, std::size_t item) {
    const Unobserved unobserved;
    switch (collective.op) {
      case Collective::kReduce: return Algebra::nans_of(ranks[collective.root]->inputs[item]);
      case Collective::kReduceScatter: return Algebra::nans_of(ranks[item]->outputs[0]);
      case Collective::kReduceScatterTensor: {
        std::vector<bool> nans;
        for (const auto* rank : ranks) {
          const auto part = Algebra::nans_of(rank->outputs[item]);
          nans.insert(nans.end(), part.begin(), part.end());
        }
        return nans;
      }
      default: return Algebra::nans_of(ranks[0]->inputs[item]);
    }
  }

 private:
  // Below this many bytes over all ranks, waking another core takes longer than it saves.
  static constexpr std::int64_t kParallelBytes = 1 << 20;

  static Sizes sizes_of(const Tensor& tensor) { return {tensor.sizes().begin(), tensor.sizes().end()}; }

  static std::int64_t elements_of_row(const Tensor& tensor) {
    const auto sizes = sizes_of(tensor);
    return std::accumulate(sizes.begin() + 1, sizes.end(), std::int64_t{1}, std::multiplies<>());
  }

  // Returns the rows to or from each rank; without explicit splits, equal parts.
  static Sizes splits_of(const Sizes& given, const Tensor& tensor, std::size_t num_ranks) {
    return given.empty() ? Sizes(num_ranks, tensor.size(0) / static_cast<std::int64_t>(num_ranks)) : given;
  }

  // One flat host buffer in memory order, as Gloo uses: the tensor itself if it is dense and on the host, else a
  // copy that `copy_back` writes to the tensors afterwards. Gloo reduces complex numbers as pairs.
  class HostBuffer {
   public:
    explicit HostBuffer(Tensors tensors) : tensors_(std::move(tensors)) {
      for (auto& tensor : tensors_) tensor = Algebra::as_real(tensor);
      const auto& first = tensors_.front();
      direct_ = tensors_.size() == 1 && Algebra::is_on_host(first) && first.is_non_overlapping_and_dense();
      flat_ = direct_ ? Algebra::in_memory_order(first) : Algebra::joined(tensors_);
    }

    void* data() { return Algebra::data(flat_); }
    [[nodiscard]] std::int64_t numel() const { return flat_.numel(); }
    [[nodiscard]] std::int64_t element_size() const { return flat_.element_size(); }
    [[nodiscard]] c10::ScalarType dtype() const { return flat_.scalar_type(); }

    void copy_back() {
      if (direct_) return;
      std::int64_t offset = 0;
      for (auto& tensor : tensors_) {
        Algebra::copy(tensor, Algebra::view(Algebra::rows(flat_, offset, offset + tensor.numel()), sizes_of(tensor)));
        offset += tensor.numel();
      }
    }

   private:
    Tensors tensors_;
    Tensor flat_;
    bool direct_ = false;
  };

  // Copies bytes directly where possible: `copy` of at::Tensor takes microseconds, which dominates P * P small copies.
  static void copy_plain(const Tensor& to, const Tensor& from) {
    const bool is_plain = Algebra::is_on_host(to) && Algebra::is_on_host(from) &&
                          to.scalar_type() == from.scalar_type() && to.sizes() == from.sizes() && to.is_contiguous() &&
                          from.is_contiguous();
    if (!is_plain) {
      Algebra::copy(to, from);
    } else if (to.numel() > 0) {
      std::memcpy(Algebra::data(to), Algebra::data(from), static_cast<std::size_t>(to.nbytes()));
    }
  }

  // Plans by the number of elements of the flat buffer: in the coalesced form chunk boundaries may lie inside a tensor.
  static void ring(std::vector<HostBuffer>& buffers, ReduceKind kind, const ParallelFor& parallel_for) {
    std::vector<void*> data;
    for (auto& buffer : buffers) data.push_back(buffer.data());
    const auto plan =
        plan_all_reduce(buffers.front().numel(), buffers.front().element_size(), static_cast<int>(buffers.size()));
    ring_all_reduce(buffers.front().dtype(), kind.reduction, plan, data, parallel_for);
    for (auto& buffer : buffers) buffer.copy_back();
  }

  // Gloo has no average: PyTorch divides the sum afterwards, and the rounding must be the same.
  static void divide(const Tensors& tensors, ReduceKind kind, std::size_t num_ranks) {
    if (!kind.average) return;
    for (const auto& tensor : tensors) Algebra::divide(tensor, static_cast<std::int64_t>(num_ranks));
  }

  static std::vector<HostBuffer> buffers_of(AllBuffers ranks) {
    std::vector<HostBuffer> buffers;
    for (auto* rank : ranks) buffers.emplace_back(rank->inputs);
    return buffers;
  }

  // Works in place on every rank's `inputs`, which are reduced as one flat buffer (one tensor: the plain form; several:
  // coalesced).
  static void all_reduce(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
    auto buffers = buffers_of(ranks);
    ring(buffers, kind, parallel_for);
    for (auto* rank : ranks) divide(rank->inputs, kind, ranks.size());
  }

  // ProcessGroupGloo gathers all indices and values and adds them on every rank in rank order; one sum for all
  // gives the same bits. Every rank's `inputs[0]` is coalesced; the sum goes to its `outputs[0]`.
  static void all_reduce_sparse(AllBuffers ranks) {
    Tensors tensors;
    for (const auto* rank : ranks) tensors.push_back(rank->inputs[0]);
    const auto sum = Algebra::sum_sparse(tensors);
    for (auto* rank : ranks) Algebra::assign_sparse(rank->outputs[0], sum);
  }

  // Works in place on `inputs[0]`; ranks other than `root` keep partial results, as in Gloo.
  static void reduce(AllBuffers ranks, ReduceKind kind, int root, const ParallelFor& parallel_for) {
    auto buffers = buffers_of(ranks);
    std::vector<void*> data;
    for (auto& buffer : buffers) data.push_back(buffer.data());
    const auto plan =
        plan_reduce(buffers.front().numel(), buffers.front().element_size(), static_cast<int>(ranks.size()));
    ring_reduce(buffers.front().dtype(), kind.reduction, plan, data, root, parallel_for);
    for (auto& buffer : buffers) buffer.copy_back();
    for (auto* rank : ranks) divide(rank->inputs, kind, ranks.size());
  }

  // Copies `inputs[0]` of `root` to every rank's `inputs[0]`; the tree of Gloo's algorithm only matters to the time,
  // not to the bits.
  static void broadcast(AllBuffers ranks, int root) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (static_cast<int>(rank) != root) Algebra::copy(ranks[rank]->inputs[0], ranks[root]->inputs[0]);
    }
  }

  // For k inputs: rank r's `inputs[i]` goes to every rank's `outputs[r * k + i]`. P * P copies: 17 million on 4,096
  // ranks, most of them of a few bytes, hence the parallel loop over receivers.
  static void all_gather(AllBuffers ranks, const ParallelFor& parallel_for) {
    const auto per_rank = ranks[0]->inputs.size();
    parallel_for(static_cast<std::int64_t>(ranks.size()), [&](std::int64_t receiver) {
      const Unobserved unobserved;
      for (std::size_t sender = 0; sender < ranks.size(); ++sender) {
        for (std::size_t item = 0; item < per_rank; ++item) {
          copy_plain(ranks[receiver]->outputs[sender * per_rank + item], ranks[sender]->inputs[item]);
        }
      }
    });
  }

  // Concatenates once and copies the result to each rank: P copies instead of P * P. The temporary also allows a
  // rank's input to be a part of its output.
  static void all_gather_into_tensor(AllBuffers ranks, const ParallelFor& parallel_for) {
    Tensors parts;
    for (auto* sender : ranks) parts.push_back(sender->inputs[0]);
    const auto whole = Algebra::joined(parts);
    const auto receive = [&](std::int64_t receiver) {
      const Unobserved unobserved;
      auto& output = ranks[receiver]->outputs[0];
      copy_plain(output, Algebra::view(whole, sizes_of(output)));
    };
    const auto num_ranks = static_cast<std::int64_t>(ranks.size());
    if (static_cast<std::int64_t>(whole.nbytes()) * num_ranks >= kParallelBytes) {
      parallel_for(num_ranks, receive);
    } else {
      for (std::int64_t receiver = 0; receiver < num_ranks; ++receiver) receive(receiver);
    }
  }

  // Rank r's `inputs[0]` goes to `outputs[r]` of `root`.
  static void gather(AllBuffers ranks, int root) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      Algebra::copy(ranks[root]->outputs[rank], ranks[rank]->inputs[0]);
  }

  // `inputs[r]` of `root` goes to rank r's `outputs[0]`.
  static void scatter(AllBuffers ranks, int root) {
    for (std::size_t rank = 0; rank < ranks.size(); ++rank)
      Algebra::copy(ranks[rank]->outputs[0], ranks[root]->inputs[rank]);
  }

  // One all-reduce per slot, as PyTorch does over Gloo; rank r keeps slot r in `outputs[0]`. Inputs are copied because
  // the ring overwrites its buffers.
  static void reduce_scatter(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
    for (std::size_t slot = 0; slot < ranks.size(); ++slot) {
      std::vector<HostBuffer> buffers;
      Tensors copies;
      for (auto* rank : ranks) copies.push_back(Algebra::host_clone(rank->inputs[slot]));
      for (const auto& copy : copies) buffers.emplace_back(Tensors{copy});
      ring(buffers, kind, parallel_for);
      divide({copies[slot]}, kind, ranks.size());
      const auto& output = ranks[slot]->outputs[0];
      Algebra::copy_bytes(output, Algebra::view(copies[slot], sizes_of(output)));
    }
  }

  // One all-reduce over each complete `inputs[i]`; rank r keeps part r in `outputs[i]`. The sum is computed once, into
  // `total`, instead of into every rank's buffer.
  static void reduce_scatter_tensor(AllBuffers ranks, ReduceKind kind, const ParallelFor& parallel_for) {
    for (std::size_t item = 0; item < ranks[0]->inputs.size(); ++item) {
      Tensors inputs;
      std::vector<void*> data;
      for (auto* rank : ranks) inputs.push_back(Algebra::host_contiguous(rank->inputs[item]));
      for (const auto& input : inputs) data.push_back(Algebra::data(input));
      const auto total = Algebra::empty_like(inputs.front());
      const auto sum = Algebra::as_real(total);
      const auto plan = plan_all_reduce(sum.numel(), sum.element_size(), static_cast<int>(ranks.size()));
      ring_sum(sum.scalar_type(), kind.reduction, plan, data, Algebra::data(sum), parallel_for);
      divide({total}, kind, ranks.size());
      const auto flat = Algebra::view(total, Sizes{total.numel()});
      const auto count = total.numel() / static_cast<std::int64_t>(ranks.size());
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        const auto& output = ranks[rank]->outputs[item];
        const auto begin = static_cast<std::int64_t>(rank) * count;
        Algebra::copy(output, Algebra::view(Algebra::rows(flat, begin, begin + count), sizes_of(output)));
      }
    }
  }

  // Compares rows first, then elements: equal rows of different widths also cannot be copied.
  static std::vector<SplitMismatch> all_to_all_single_mismatches(AllBuffers ranks) {
    std::vector<Sizes> sent, received;
    for (const auto* rank : ranks) {
      sent.push_back(splits_of(rank->input_splits, rank->inputs[0], ranks.size()));
      received.push_back(splits_of(rank->output_splits, rank->outputs[0], ranks.size()));
    }
    std::vector<SplitMismatch> mismatches;
    for (int from = 0; from < static_cast<int>(ranks.size()); ++from) {
      for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
        const auto of_row = elements_of_row(ranks[from]->inputs[0]),
                   expected_of_row = elements_of_row(ranks[to]->outputs[0]);
        if (sent[from][to] != received[to][from]) {
          mismatches.push_back({from, to, sent[from][to], received[to][from]});
        } else if (sent[from][to] > 0 && of_row != expected_of_row) {
          mismatches.push_back({from, to, sent[from][to] * of_row, received[to][from] * expected_of_row});
        }
      }
    }
    return mismatches;
  }

  static std::vector<SplitMismatch> all_to_all_mismatches(AllBuffers ranks) {
    std::vector<SplitMismatch> mismatches;
    for (int from = 0; from < static_cast<int>(ranks.size()); ++from) {
      for (int to = 0; to < static_cast<int>(ranks.size()); ++to) {
        const auto &sent = ranks[from]->inputs[to], &received = ranks[to]->outputs[from];
        if (sent.sizes() != received.sizes()) mismatches.push_back({from, to, sent.numel(), received.numel()});
      }
    }
    return mismatches;
  }

  // Rows of `inputs[0]` by `input_splits` go to rows of `outputs[0]` by `output_splits`. Receivers fill their outputs
  // in the order of the senders, which is the order of their splits.
  static void all_to_all_single(AllBuffers ranks) {
    Sizes filled(ranks.size());  // rows already written, by receiver
    for (const auto* from : ranks) {
      const auto sent = splits_of(from->input_splits, from->inputs[0], ranks.size());
      std::int64_t first = 0;
      for (std::size_t to = 0; to < ranks.size(); ++to) {
        const auto rows = Algebra::rows(ranks[to]->outputs[0], filled[to], filled[to] + sent[to]);
        Algebra::copy(rows, Algebra::reshape(Algebra::rows(from->inputs[0], first, first + sent[to]), sizes_of(rows)));
        first += sent[to];
        filled[to] += sent[to];
      }
    }
  }

  // Rank r's `inputs[s]` goes to rank s's `outputs[r]`. Gloo copies the inputs first, so an output may be an input too.
  static void all_to_all(AllBuffers ranks) {
    std::vector<Tensors> inputs(ranks.size());
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      for (const auto& input : ranks[from]->inputs) inputs[from].push_back(Algebra::host_clone(input));
    }
    for (std::size_t from = 0; from < ranks.size(); ++from) {
      for (std::size_t to = 0; to < ranks.size(); ++to) Algebra::copy(ranks[to]->outputs[from], inputs[from][to]);
    }
  }
};

template <typename Tensor>
std::vector<SplitMismatch> split_mismatches(Collective op, AllBuffersOf<Tensor> ranks) {
  return CollectivesOf<Tensor>::split_mismatches(op, ranks);
}

template <typename Tensor>
void compute(const CollectiveOfAll& collective, AllBuffersOf<Tensor> ranks, const ParallelFor& parallel_for) {
  CollectivesOf<Tensor>::compute(collective, ranks, parallel_for);
}

template <typename Tensor>
std::vector<bool> nans_of_result(const CollectiveOfAll& collective, AllBuffersOf<Tensor> ranks, std::size_t item) {
  return CollectivesOf<Tensor>::nans_of_result(collective, ranks, item);
}

}  // namespace accel::sim
