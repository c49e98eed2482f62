#include "reference/precision/autocast.hpp"

#include <ATen/autocast_mode.h>

namespace accel {

Autocast::Autocast(Options options)
    // Autocast state is thread-local in LibTorch, so each scope saves and restores all four parts of it itself.
    : device_(options.device),
      previous_enabled_(at::autocast::is_autocast_enabled(options.device)),
      previous_cache_(at::autocast::is_autocast_cache_enabled()),
      previous_dtype_(at::autocast::get_autocast_dtype(options.device)) {
  at::autocast::set_autocast_enabled(device_, options.enabled);
  at::autocast::set_autocast_dtype(device_, options.dtype);
  at::autocast::increment_nesting();
  at::autocast::set_autocast_cache_enabled(options.cache_enabled.value_or(previous_cache_));
}

Autocast::~Autocast() {
  // The cache holds cast copies of weights. The optimizer changes the weights afterwards, so the copies must not
  // outlive the outermost scope.
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(device_, previous_enabled_);
  at::autocast::set_autocast_dtype(device_, previous_dtype_);
  at::autocast::set_autocast_cache_enabled(previous_cache_);
}

at::Tensor convert_to_fp32(const at::Tensor& tensor) {
  const bool is_half = tensor.defined() && (tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16);
  return is_half ? tensor.to(at::kFloat) : tensor;
}

}  // namespace accel
