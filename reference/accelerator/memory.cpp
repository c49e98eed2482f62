#include "reference/accelerator/memory.hpp"

#include <ATen/DeviceAccelerator.h>
#include <c10/util/Exception.h>

#include <new>
#include <string_view>

#include "reference/core/errors.hpp"

namespace accel {

void clear_device_cache() {
  if (at::accelerator::isAccelerator(at::kCUDA) && at::accelerator::deviceCount() > 0) at::accelerator::emptyCache();
}

bool should_reduce_batch_size(const std::exception& error) {
  // LibTorch reports a shortage on the CPU as a plain c10::Error, so the message is the only evidence there. The texts
  // are those of accelerate/utils/memory.py, should_reduce_batch_size.
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr ||
      dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr)
    return true;
  const std::string_view message = error.what();
  for (const auto* words :
       {" out of memory.", "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.", "DefaultCPUAllocator: can't allocate memory"}) {
    if (message.find(words) != std::string_view::npos) return true;
  }
  return false;
}

std::int64_t BatchSizeSearch::next(std::int64_t batch_size) const {
  const auto next = batch_size == 0
                        ? 0
                        : (reduce_batch_size ? reduce_batch_size(batch_size)
                                             : static_cast<std::int64_t>(static_cast<double>(batch_size) * 0.9));
  // The first sentence is the text of accelerate/utils/memory.py, find_executable_batch_size.
  if (next <= 0) {
    throw Error(fmt::format(
        "No executable batch size found, reached zero. The last batch size was {}; expected one of 1 or more that fits "
        "in memory. Use a smaller model or smaller samples",
        batch_size));
  }
  // A reducer that does not reduce would retry forever.
  check_argument(next < batch_size,
                 "find_executable_batch_size: reduce_batch_size returned {} for {}; expected a smaller batch size",
                 next, batch_size);
  return next;
}

}  // namespace accel
