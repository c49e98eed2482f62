#pragma once

#include <ATen/core/Tensor.h>

namespace accel {

/// Makes the columns of each matrix orthonormal, in place: by QR, or by Gram-Schmidt for at most two columns and for
/// half precision. `epsilon` is added to norms in Gram-Schmidt, for columns of zeros.
///
/// Shape: (n, m) or (batch, n, m) with m <= n. Thread rule: a plain function on values.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, _orthogonalize.
void orthogonalize(at::Tensor matrices, double epsilon = 0);

}  // namespace accel
