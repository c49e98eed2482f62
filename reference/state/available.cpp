#include "reference/state/available.hpp"

#include <ATen/Context.h>

namespace accel {

bool is_cuda_available() { return at::globalContext().hasCUDA(); }

}  // namespace accel
