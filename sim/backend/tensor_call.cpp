// Checks and describes the tensors of one rank's call. What Gloo checks is checked here with the same result
// (an error before anything is sent), and what it does not check becomes part of the Call, which the engine compares.
#include "sim/backend/tensor_call.hpp"

#include <ATen/ATen.h>

#include "reference/core/call_site.hpp"
#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

// The stride of a dimension of size 1 is arbitrary and does not affect the memory order, so it is cleared:
// otherwise equal layouts would compare as different.
std::vector<std::int64_t> significant_strides(const at::Tensor& tensor) {
  auto strides = tensor.strides().vec();
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.size(dim) == 1) strides[dim] = 0;
  }
  return strides;
}

}  // namespace

NamedReduction reduction_of(const c10d::ReduceOp& op) {
  using RedOp = c10d::ReduceOp::RedOpType;
  switch (static_cast<RedOp>(op)) {
    case RedOp::SUM: return {"sum", {Reduction::kSum}};
    case RedOp::AVG: return {"mean", {Reduction::kSum, /*average=*/true}};
    case RedOp::PRODUCT: return {"product", {Reduction::kProduct}};
    case RedOp::MIN: return {"min", {Reduction::kMin}};
    case RedOp::MAX: return {"max", {Reduction::kMax}};
    case RedOp::BAND: return {"band", {Reduction::kBitwiseAnd}};
    case RedOp::BOR: return {"bor", {Reduction::kBitwiseOr}};
    case RedOp::BXOR: return {"bxor", {Reduction::kBitwiseXor}};
    default:
      throw ArgumentError(
          "reduce operation premul_sum requires NCCL; Gloo and the simulator support sum, mean, product, min, max, "
          "band, bor, bxor");
  }
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

// Views, not copies: the parts of an output are written in place.
std::vector<at::Tensor> parts_of(Collective op, const at::Tensor& tensor, const at::Tensor& part, int count) {
  check_parts(op, tensor, part, count);
  if (!tensor.is_contiguous()) {
    check_argument(
        tensor.dim() > 0 && tensor.size(0) % count == 0 &&
            tensor.sizes().slice(1) == part.sizes().slice(std::min<std::size_t>(1, part.dim())),
        "{}: the output of shape {} is not contiguous and has no {} parts of shape {} along dimension 0; pass "
        "a contiguous one",
        name_of(op), c10::str(tensor.sizes()), count, c10::str(part.sizes()));
    return tensor.chunk(count);
  }
  std::vector<at::Tensor> parts;
  const auto flat = tensor.view({count, part.numel()});
  for (int index = 0; index < count; ++index) parts.push_back(flat[index].view(part.sizes()));
  return parts;
}

// Gloo reduces memory, not logical elements: a transposed tensor is reduced in the order in which its bytes lie.
at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}); }

std::int64_t bytes_of_entries(const at::Tensor& sparse) {
  return static_cast<std::int64_t>(sparse._indices().nbytes() + sparse._values().nbytes());
}

// Strides are part of the call only for in-place collectives on non-contiguous tensors: the elements of all
// ranks are combined in memory order, so layouts must agree, or wrong elements would be added.
Call call_of(Collective op, const std::vector<at::Tensor>& tensors, std::string_view reduce_op, int root) {
  Call call{.op = op, .reduce_op = reduce_op, .root = root, .where = CallSite::current()};
  for (const auto& tensor : tensors) {
    const bool is_sparse = tensor.layout() == at::kSparse;
    call.shapes.push_back(tensor.sizes().vec());
    if (traits_of(op).is_in_place && !is_sparse && !tensor.is_contiguous())
      call.strides.push_back(significant_strides(tensor));
    call.dtype = dtype_name(tensor.scalar_type());
    if (is_sparse) call.sparse_dim = static_cast<int>(tensor.sparse_dim());
    call.element_bytes = static_cast<int>(tensor.element_size());
    call.bytes += is_sparse ? bytes_of_entries(tensor) : tensor.numel() * call.element_bytes;
  }
  return call;
}

}  // namespace accel::sim
