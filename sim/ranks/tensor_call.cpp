// What Gloo does not check becomes part of the Call, which the engine compares.
#include "sim/ranks/tensor_call.hpp"

#include <fmt/ranges.h>

#include <array>

#include "reference/comm/dtypes.hpp"
#include "reference/comm/reduction_name.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/call_site.hpp"

namespace accel::sim {
namespace {

// The stride of a dimension of size 1 is arbitrary and does not affect the memory order, so it is cleared:
// otherwise equal layouts would compare as different.
std::vector<std::int64_t> significant_strides(const TensorDescription& tensor) {
  auto strides = tensor.strides;
  for (std::size_t dim = 0; dim < strides.size(); ++dim) {
    if (tensor.sizes[dim] == 1) strides[dim] = 0;
  }
  return strides;
}

}  // namespace

// By the numbers of c10d::ReduceOp::RedOpType, as kReductionNames.
NamedReduction reduction_of(int reduce_op) {
  static constexpr std::array<ReduceKind, kReductionNames.size()> kKinds = {{{Reduction::kSum},
                                                                             {Reduction::kSum, /*average=*/true},
                                                                             {Reduction::kProduct},
                                                                             {Reduction::kMin},
                                                                             {Reduction::kMax},
                                                                             {Reduction::kBitwiseAnd},
                                                                             {Reduction::kBitwiseOr},
                                                                             {Reduction::kBitwiseXor}}};
  const auto name = reduction_name(reduce_op);
  check_argument(
      !name.empty(),
      "reduce operation premul_sum requires NCCL; Gloo and the simulator support sum, mean, product, min, max, "
      "band, bor, bxor");
  return {name, kKinds[reduce_op]};
}

void check_rows(Collective op, const std::vector<std::int64_t>& sizes, const std::vector<std::int64_t>& part,
                int count) {
  const auto rest = [](const std::vector<std::int64_t>& of) {
    return std::vector(of.begin() + std::min<std::ptrdiff_t>(1, std::ssize(of)), of.end());
  };
  check_argument(!sizes.empty() && sizes.front() % count == 0 && rest(sizes) == rest(part),
                 "{}: the output of shape [{}] is not contiguous and has no {} parts of shape [{}] along dimension 0; "
                 "pass a contiguous one",
                 name_of(op), fmt::join(sizes, ", "), count, fmt::join(part, ", "));
}

// Strides are part of the call only for in-place collectives on non-contiguous tensors: the elements of all
// ranks are combined in memory order, so layouts must agree, or wrong elements would be added.
//
// Ranks may send different numbers of rows in an all-to-all, so its Call holds only the dtype; the splits are compared
// once all ranks have arrived and both sides of each pair are known.
Call call_of(Collective op, const std::vector<TensorDescription>& tensors, std::string_view reduce_op, int root) {
  if (op == Collective::kBarrier || op == Collective::kMonitoredBarrier) return {.op = op};
  const bool is_all_to_all = op == Collective::kAllToAll || op == Collective::kAllToAllSingle;
  Call call{.op = op,
            .reduce_op = reduce_op,
            .root = root,
            .library_call = std::string(CallSite::library_call()),
            .where = CallSite::current()};
  for (const auto& tensor : tensors) {
    if (!is_all_to_all) {
      call.shapes.push_back(tensor.sizes);
      if (traits_of(op).is_in_place && tensor.sparse_dim == 0 && !tensor.is_contiguous)
        call.strides.push_back(significant_strides(tensor));
      if (tensor.sparse_dim > 0) call.sparse_dim = tensor.sparse_dim;
    }
    call.dtype = dtype_name(tensor.dtype);
    call.element_bytes = tensor.element_bytes;
    call.bytes += tensor.bytes;
  }
  return call;
}

}  // namespace accel::sim
