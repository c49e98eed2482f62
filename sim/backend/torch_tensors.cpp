#include "sim/backend/torch_tensors.hpp"

#include <ATen/ATen.h>

#include "reference/comm/operator_watch.hpp"
#include "reference/comm/tensor_fingerprint.hpp"
#include "sim/collectives/tensors/collectives_of.hpp"
#include "sim/ranks/group_member_of.hpp"

namespace accel::sim {

using Algebra = TensorAlgebra<at::Tensor>;
using Inspection = TensorInspection<at::Tensor>;

// Gloo reduces complex numbers as pairs.
at::Tensor Algebra::as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor.detach().resolve_conj()) : tensor;
}

// Gloo reduces memory, not logical elements: a transposed tensor is reduced in the order in which its bytes lie.
at::Tensor Algebra::in_memory_order(const at::Tensor& tensor) {
  return tensor.detach().as_strided({tensor.numel()}, {1});
}

at::Tensor Algebra::host_contiguous(const at::Tensor& tensor) { return tensor.detach().to(at::kCPU).contiguous(); }

at::Tensor Algebra::empty_like(const at::Tensor& tensor) { return at::empty_like(tensor); }

at::Tensor Algebra::joined(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> pieces;
  for (const auto& tensor : tensors) pieces.push_back(tensor.detach().to(at::kCPU).reshape({-1}));
  return tensors.size() == 1 ? pieces.front().clone() : at::cat(pieces);
}

// A sum of bools may be a byte of 2 or more, which `copy_` would change to 1; Gloo's list form keeps the byte.
void Algebra::copy_bytes(const at::Tensor& to, const at::Tensor& from) {
  if (to.scalar_type() == at::kBool && to.is_contiguous()) {
    to.detach().view(at::kByte).copy_(from.contiguous().view(at::kByte));
  } else {
    copy(to, from);
  }
}

at::Tensor Algebra::coalesced(const at::Tensor& tensor) {
  const at::DisableRecordFunctionGuard unwatched;
  return tensor.detach().coalesce();
}

at::Tensor Algebra::copy_of(const at::Tensor& tensor) {
  const at::DisableRecordFunctionGuard unwatched;
  return tensor.detach().clone();
}

std::vector<at::Tensor> Algebra::parts_of(const at::Tensor& tensor, const at::Tensor& part, int count) {
  if (!tensor.is_contiguous()) return tensor.chunk(count);
  std::vector<at::Tensor> parts;
  const auto flat = tensor.view({count, part.numel()});
  for (int index = 0; index < count; ++index) parts.push_back(flat[index].view(part.sizes()));
  return parts;
}

std::vector<bool> Algebra::nans_of(const at::Tensor& tensor) {
  const auto nans = tensor.isnan().to(at::kCPU).contiguous();
  const auto* const data = nans.const_data_ptr<bool>();
  return std::vector<bool>(data, data + nans.numel());
}

at::Tensor Algebra::sum_sparse(const std::vector<at::Tensor>& tensors) {
  auto sum = tensors.front().clone();
  for (std::size_t rank = 1; rank < tensors.size(); ++rank) sum.add_(tensors[rank]);
  return sum.coalesce();
}

TensorDescription Inspection::description_of(const at::Tensor& tensor) {
  TensorDescription description{.dtype = tensor.scalar_type(),
                                .sizes = tensor.sizes().vec(),
                                .element_bytes = static_cast<int>(tensor.element_size())};
  if (tensor.layout() == at::kStrided) {
    description.strides = tensor.strides().vec();
    description.is_contiguous = tensor.is_contiguous();
    description.is_dense = tensor.is_non_overlapping_and_dense();
    description.bytes = tensor.numel() * description.element_bytes;
    return description;
  }
  description.layout = c10::str(tensor.layout());
  if (tensor.layout() == at::kSparse) {
    description.sparse_dim = static_cast<int>(tensor.sparse_dim());
    description.bytes = static_cast<std::int64_t>(tensor._indices().nbytes() + tensor._values().nbytes());
  }
  return description;
}

std::uint64_t Inspection::sample_of(const at::Tensor& tensor) { return sample_fingerprint(tensor); }

void Inspection::add_memory(const at::Tensor& tensor, bool is_written, std::vector<PendingMemory>& memory) {
  for (auto& used : used_memory({tensor}, is_written)) {
    memory.push_back({.begin = used.range.begin,
                      .end = used.range.end,
                      .is_written = used.is_written,
                      .is_freed = [owner = std::move(used.owner)] { return owner.expired(); }});
  }
}

at::Tensor Inspection::dense_part(const at::Tensor& tensor) {
  return tensor.layout() == at::kSparse ? tensor._values() : tensor;
}

void Inspection::set_first(const at::Tensor& tensor, double value) {
  const c10::NoGradGuard no_grad;
  Algebra::in_memory_order(tensor)[0].fill_(value);
}

void Inspection::flip_bit(const at::Tensor& tensor, std::int64_t bit) {
  const c10::NoGradGuard no_grad;
  auto bytes = tensor.is_cpu() ? tensor : tensor.to(at::kCPU);
  static_cast<unsigned char*>(bytes.data_ptr())[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  if (!tensor.is_cpu()) tensor.copy_(bytes);
}

// The numbers of reduction_of.
static_assert(c10d::ReduceOp::SUM == 0 && c10d::ReduceOp::AVG == 1 && c10d::ReduceOp::PRODUCT == 2 &&
              c10d::ReduceOp::MIN == 3 && c10d::ReduceOp::MAX == 4 && c10d::ReduceOp::BAND == 5 &&
              c10d::ReduceOp::BOR == 6 && c10d::ReduceOp::BXOR == 7);

RankCall<at::Tensor> rank_call_of(const CollectiveArgs& args) {
  RankCall<at::Tensor> call{.collective = args.collective,
                            .inputs = args.inputs,
                            .outputs = args.outputs,
                            .root = args.root,
                            .tag = args.tag,
                            .is_in_gloo = is_in_gloo(args.collective),
                            .input_splits = args.input_splits,
                            .output_splits = args.output_splits};
  if (traits_of(args.collective).reduces)
    call.reduction = reduction_of(static_cast<c10d::ReduceOp::RedOpType>(args.reduce_op));
  return call;
}

Call call_of(const CollectiveArgs& args) {
  return call_of(rank_call_of(args), descriptions_of(args.inputs), descriptions_of(args.outputs));
}

std::vector<TensorDescription> descriptions_of(const std::vector<at::Tensor>& tensors) {
  return descriptions_of<at::Tensor>(tensors);
}

template class GroupMember<at::Tensor>;
template std::vector<SplitMismatch> split_mismatches(Collective, AllBuffersOf<at::Tensor>);
template void compute(const CollectiveOfAll&, AllBuffersOf<at::Tensor>, const ParallelFor&);
template std::vector<bool> nans_of_result(const CollectiveOfAll&, AllBuffersOf<at::Tensor>, std::size_t);

}  // namespace accel::sim
