#include "reference/context_parallel/token_mean.hpp"

#include <ATen/ATen.h>

#include "reference/core/errors.hpp"

namespace accel::parallel {

at::Tensor token_mean(const at::Tensor& loss_sum, const at::Tensor& num_tokens, const Group& group) {
  check_argument(loss_sum.dim() == 0 && loss_sum.is_floating_point(),
                 "token_mean: loss_sum is {} of shape {}; expected a floating-point number of shape []",
                 c10::toString(loss_sum.scalar_type()), c10::str(loss_sum.sizes()));
  check_argument(num_tokens.dim() == 0 && at::isIntegralType(num_tokens.scalar_type(), /*includeBool=*/false),
                 "token_mean: num_tokens is {} of shape {}; expected an integer of shape [], such as "
                 "labels.ne(-100).sum()",
                 c10::toString(num_tokens.scalar_type()), c10::str(num_tokens.sizes()));
  auto total = num_tokens.to(at::kLong, /*non_blocking=*/false, /*copy=*/true);
  group.all_reduce(total).wait();
  return loss_sum * group.size() / total;
}

}  // namespace accel::parallel
