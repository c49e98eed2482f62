#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

/// Releases the memory of a training run, and finds a batch size that fits into memory.
///
///     const auto accuracy =
///         accel::find_executable_batch_size([&](std::int64_t batch_size) { return train(batch_size); });
///     accel::release_memory(model, optimizer);
///
/// Source: accelerate/utils/memory.py.
namespace accel {

/// Returns memory that LibTorch caches for reuse to the device. Does nothing on CPUs.
void clear_device_cache();

namespace detail {
// The empty value of a type. A default-constructed module holder would create a new module, so it gets nullptr instead.
template <typename Object>
Object nothing() {
  if constexpr (std::is_default_constructible_v<Object> && !requires { typename Object::ContainedType; }) {
    return Object();
  } else {
    return Object(nullptr);
  }
}
}  // namespace detail

/// Resets each object to the empty value of its type and clears the device's cache. Accepts tensors, pointers,
/// containers, module holders and the objects that `prepare` returns; the last may then only be assigned or destroyed.
template <typename... Objects>
void release_memory(Objects&... objects) {
  ((objects = detail::nothing<Objects>()), ...);
  clear_device_cache();
}

/// Whether `error` reports that memory ran out, on a device or on the CPU.
bool should_reduce_batch_size(const std::exception& error);

struct BatchSizeSearch {
  std::int64_t starting_batch_size = 128;
  std::function<std::int64_t(std::int64_t batch_size)> reduce_batch_size =
      {};  ///< returns the next size to try; default: 90 %

  /// Returns the size to try after `batch_size`. Throws Error if it is zero.
  [[nodiscard]] std::int64_t next(std::int64_t batch_size) const;
};

/// Calls `function(batch_size)` with decreasing sizes until it does not run out of memory, and returns its result.
///
/// With several ranks, memory must run out on all of them alike: a rank that fails alone leaves the others waiting in
/// their collectives until they time out.
/// Rethrows every other exception of the function. Throws Error if no size is left.
template <typename F>
auto find_executable_batch_size(F&& function, BatchSizeSearch search = {}) {
  clear_device_cache();
  for (auto batch_size = search.starting_batch_size;;) {
    if (batch_size == 0) static_cast<void>(search.next(0));
    try {
      return function(batch_size);
    } catch (const std::exception& error) {
      if (!should_reduce_batch_size(error)) throw;
    }
    clear_device_cache();  // after the handler, since the exception object may still own tensors of the function
    batch_size = search.next(batch_size);
  }
}

}  // namespace accel
