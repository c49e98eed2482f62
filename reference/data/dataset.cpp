#include "reference/data/dataset.hpp"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

namespace accel::detail {

// One index_select per batch instead of one select per sample and a stack. from_blob does not copy: `rows`
// outlives the call, and index_select does not write to its index.
at::Tensor select_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& rows) {
  const auto index =
      at::from_blob(const_cast<std::int64_t*>(rows.data()), {static_cast<std::int64_t>(rows.size())}, at::kLong);
  return at::index_select(tensor, 0, index.to(tensor.device()));
}

void check_rows(const std::vector<at::Tensor>& tensors) {
  check_argument(!tensors.empty(), "TensorDataset: expected at least one tensor");
  for (const auto& tensor : tensors) {
    check_argument(
        tensor.dim() > 0 && tensor.size(0) == tensors.front().size(0),
        "TensorDataset: the first dimensions differ ({} and {}); expected the same number of samples in every tensor",
        tensors.front().dim() > 0 ? tensors.front().size(0) : 0, tensor.dim() > 0 ? tensor.size(0) : 0);
  }
}

}  // namespace accel::detail
