#include "reference/comm/exchanged_tensor.hpp"

#include <ATen/ATen.h>

#include "reference/comm/dtypes.hpp"

namespace accel {

at::Tensor as_exchanged(const at::Tensor& tensor) {
  if (is_exchanged(tensor.scalar_type()) || tensor.layout() != at::kStrided) return tensor;
  return tensor.detach().as_strided({tensor.numel()}, {1}).view(at::kByte);
}

}  // namespace accel
