#include "reference/comm/collective_args.hpp"

#include <ATen/ATen.h>
#include <torch/version.h>

#include "reference/comm/dtypes.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

using Lists = std::vector<CollectiveArgs::Tensors>;

// One list per rank.
Lists lists_of_ranks(const CollectiveArgs& args) {
  Lists lists;
  const auto count = args.inputs.size();
  for (auto first = args.outputs.begin(); first != args.outputs.end(); first += static_cast<std::ptrdiff_t>(count))
    lists.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
  return lists;
}

// One list, or none: gather and scatter have lists on the root only.
Lists one_list(const CollectiveArgs::Tensors& tensors) { return tensors.empty() ? Lists() : Lists{tensors}; }

}  // namespace

bool is_sparse(const CollectiveArgs& args) {
  return !args.inputs.empty() && args.inputs.front().layout() == at::kSparse;
}

Lists results_of(const CollectiveArgs& args) {
  if (traits_of(args.collective).is_in_place) return {args.inputs};
  if (args.collective == Collective::kAllGatherCoalesced) return lists_of_ranks(args);
  return one_list(args.outputs);
}

bool is_in_gloo(Collective op) {
  return op != Collective::kAllToAll || TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 12;
}

c10d::OpType op_type_of(const CollectiveArgs& args) {
  using c10d::OpType;
  switch (args.collective) {
    case Collective::kAllReduce: return is_sparse(args) ? OpType::_ALLREDUCE_SPARSE : OpType::ALLREDUCE;
    case Collective::kAllReduceCoalesced: return OpType::ALLREDUCE_COALESCED;
    case Collective::kBroadcast: return OpType::BROADCAST;
    case Collective::kReduce: return OpType::REDUCE;
    case Collective::kAllGather: return OpType::ALLGATHER;
    case Collective::kAllGatherIntoTensor: return OpType::_ALLGATHER_BASE;
    case Collective::kAllGatherCoalesced: return OpType::ALLGATHER_COALESCED;
    case Collective::kAllGatherIntoTensorCoalesced: return OpType::COALESCED;
    case Collective::kGather: return OpType::GATHER;
    case Collective::kScatter: return OpType::SCATTER;
    case Collective::kReduceScatter: return OpType::REDUCE_SCATTER;
    case Collective::kReduceScatterTensor: return OpType::_REDUCE_SCATTER_BASE;
    case Collective::kAllToAll: return OpType::ALLTOALL;
    case Collective::kAllToAllSingle: return OpType::ALLTOALL_BASE;
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier: return OpType::BARRIER;
    case Collective::kSend: return OpType::SEND;
    case Collective::kRecv: return args.root < 0 ? OpType::RECVANYSOURCE : OpType::RECV;
    case Collective::kCount: break;
  }
  return OpType::UNKNOWN;
}

c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const CollectiveArgs& args) {
  auto inputs = args.inputs, outputs = args.outputs;
  auto input_splits = args.input_splits, output_splits = args.output_splits;
  const auto options_as = [&](auto options) {
    options.timeout = args.timeout;
    options.asyncOp = args.is_async;
    if constexpr (requires { options.reduceOp; }) options.reduceOp = args.reduce_op;
    if constexpr (requires { options.rootRank; }) options.rootRank = args.root;
    return options;
  };
  switch (args.collective) {
    case Collective::kAllReduce: return backend.allreduce(inputs, options_as(c10d::AllreduceOptions()));
    case Collective::kAllReduceCoalesced:
      return backend.allreduce_coalesced(inputs, options_as(c10d::AllreduceCoalescedOptions()));
    case Collective::kBroadcast: return backend.broadcast(inputs, options_as(c10d::BroadcastOptions()));
    case Collective::kReduce: return backend.reduce(inputs, options_as(c10d::ReduceOptions()));
    case Collective::kAllGather: {
      auto lists = one_list(outputs);
      return backend.allgather(lists, inputs, options_as(c10d::AllgatherOptions()));
    }
    case Collective::kAllGatherIntoTensor:
      return backend._allgather_base(outputs[0], inputs[0], options_as(c10d::AllgatherOptions()));
    case Collective::kAllGatherCoalesced: {
      auto lists = lists_of_ranks(args);
      return backend.allgather_coalesced(lists, inputs, options_as(c10d::AllgatherOptions()));
    }
    case Collective::kAllGatherIntoTensorCoalesced:
      return backend.allgather_into_tensor_coalesced(outputs, inputs, options_as(c10d::AllgatherOptions()));
    case Collective::kGather: {
      auto lists = one_list(outputs);
      return backend.gather(lists, inputs, options_as(c10d::GatherOptions()));
    }
    case Collective::kScatter: {
      auto lists = one_list(inputs);
      return backend.scatter(outputs, lists, options_as(c10d::ScatterOptions()));
    }
    case Collective::kReduceScatter: {
      auto lists = one_list(inputs);
      return backend.reduce_scatter(outputs, lists, options_as(c10d::ReduceScatterOptions()));
    }
    case Collective::kReduceScatterTensor: {
      const auto options = options_as(c10d::ReduceScatterOptions());
      return inputs.size() == 1 ? backend._reduce_scatter_base(outputs[0], inputs[0], options)
                                : backend.reduce_scatter_tensor_coalesced(outputs, inputs, options);
    }
    case Collective::kAllToAll: return backend.alltoall(outputs, inputs, options_as(c10d::AllToAllOptions()));
    case Collective::kAllToAllSingle:
      return backend.alltoall_base(outputs[0], inputs[0], output_splits, input_splits,
                                   options_as(c10d::AllToAllOptions()));
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier: return backend.barrier(options_as(c10d::BarrierOptions()));
    case Collective::kSend: return backend.send(inputs, args.root, args.tag);
    case Collective::kRecv:
      return args.root < 0 ? backend.recvAnysource(outputs, args.tag) : backend.recv(outputs, args.root, args.tag);
    case Collective::kCount: break;
  }
  throw InternalError("a call of no collective");
}

void check_one(Collective op, const std::vector<at::Tensor>& tensors) {
  check_argument(tensors.size() == 1, "{}: got {} tensors; expected one per rank", name_of(op), tensors.size());
}

void check_count(Collective op, std::string_view what, std::size_t given, std::size_t expected) {
  check_argument(given == expected, "{} {}: got {} tensors; expected {}, one per rank", name_of(op), what, given,
                 expected);
}

// Shapes are compared exactly, like in ProcessGroupGloo; equal numbers of elements are not enough.
void check_same(Collective op, const at::Tensor& tensor, const at::Tensor& like) {
  check_argument(tensor.scalar_type() == like.scalar_type() && tensor.sizes() == like.sizes(),
                 "{}: got a tensor of {} {}; expected {} {} as for the others", name_of(op), c10::str(tensor.sizes()),
                 c10::toString(tensor.scalar_type()), c10::str(like.sizes()), c10::toString(like.scalar_type()));
}

void check_root(Collective op, int root, int num_ranks) {
  check_argument(root >= 0 && root < num_ranks,
                 "{}: root {} is not in the group of {} ranks; expected 0 or more and less than {}", name_of(op), root,
                 num_ranks, num_ranks);
}

void check_parts(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count) {
  check_argument(tensor.numel() == part.numel() * count && tensor.scalar_type() == part.scalar_type(),
                 "{}: got {} elements of {} on one side and {} of {} on the other; expected {} times as many elements, "
                 "of one dtype",
                 name_of(op), tensor.numel(), c10::toString(tensor.scalar_type()), part.numel(),
                 c10::toString(part.scalar_type()), count);
}

void check_one_dtype(Collective op, const std::vector<at::Tensor>& tensors) {
  for (const auto& tensor : tensors) {
    check_argument(tensor.scalar_type() == tensors.front().scalar_type(),
                   "{}: got tensors of {} and {}; expected one dtype", name_of(op),
                   dtype_name(tensors.front().scalar_type()), dtype_name(tensor.scalar_type()));
  }
}

}  // namespace accel
