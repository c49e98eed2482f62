// Describes the tensors of one rank's call. What Gloo does not check becomes part of the Call, which the engine
// compares.
#include "sim/backend/tensor_call.hpp"

#include <ATen/ATen.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"

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

std::string_view reduction_name_of(const CollectiveArgs& args) {
  return traits_of(args.collective).reduces ? reduction_of(args.reduce_op).name : std::string_view();
}

int root_of(const CollectiveArgs& args) { return traits_of(args.collective).has_root ? args.root : -1; }

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

Call call_of(const CollectiveArgs& args, const std::vector<at::Tensor>& inputs) {
  switch (args.collective) {
    case Collective::kBarrier:
    case Collective::kMonitoredBarrier: return {.op = args.collective};
    // Ranks may send different numbers of rows, so the Call holds only the dtype; the splits are compared once all
    // ranks have arrived and both sides of each pair are known.
    case Collective::kAllToAll:
    case Collective::kAllToAllSingle: {
      Call call{.op = args.collective,
                .dtype = dtype_name(inputs.front().scalar_type()),
                .element_bytes = static_cast<int>(inputs.front().element_size())};
      for (const auto& input : inputs) call.bytes += static_cast<std::int64_t>(input.nbytes());
      return call;
    }
    // The input list of a scatter is on the root only.
    case Collective::kScatter:
    case Collective::kRecv: return call_of(args.collective, args.outputs, {}, root_of(args));
    default: return call_of(args.collective, inputs, reduction_name_of(args), root_of(args));
  }
}

}  // namespace accel::sim
