#include "reference/tree/tree_rows.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

namespace accel::detail {

// at::cat would promote dtypes silently and report a shape mismatch without naming the operation. A rank with
// another dtype is a bug in the user's program, so it is an error here.
at::Tensor concatenate_tensors(const std::vector<at::Tensor>& tensors) {
  const auto& first = tensors.front();
  for (const auto& tensor : tensors) {
    check_tensor_has_rows(tensor);
    check_argument(
        tensor.sizes().slice(1) == first.sizes().slice(1) && tensor.scalar_type() == first.scalar_type(),
        "concatenate: tensors of {} {} and {} {}; expected equal dtypes and equal sizes except in dimension 0; "
        "pad the tensors or keep their sizes equal",
        c10::toString(first.scalar_type()), c10::str(first.sizes()), c10::toString(tensor.scalar_type()),
        c10::str(tensor.sizes()));
  }
  return at::cat(tensors);
}

at::Tensor slice_tensor(const at::Tensor& tensor, RowRange rows) {
  check_tensor_has_rows(tensor);
  check_argument(rows.end <= tensor.size(0),
                 "slice_rows: rows {} to {} are out of range for a tensor with {} rows; expected an end of at most {}",
                 rows.begin, rows.end, tensor.size(0), tensor.size(0));
  return tensor.narrow(0, rows.begin, rows.size());
}

void check_tensor_has_rows(const at::Tensor& tensor) {
  check_argument(tensor.defined() && tensor.dim() > 0,
                 "a tensor without dimensions has no rows; expected (batch, ...)");
}

}  // namespace accel::detail
