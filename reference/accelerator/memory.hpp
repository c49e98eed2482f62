#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <type_traits>
#include <utility>

/// Memory of a training run: giving it back, and finding a batch size that fits.
///
///     const auto accuracy =
///         accel::find_executable_batch_size([&](std::int64_t batch_size) { return train(batch_size); });
///     accel::release_memory(model, optimizer);
///
/// Source: accelerate/utils/memory.py.
namespace accel {

/// Gives memory that LibTorch keeps for reuse back to the device. Nothing on CPUs.
void clear_device_cache();

namespace detail {
// A module's holder is a new module by default.
template <typename Object>
Object nothing() {
  if constexpr (std::is_default_constructible_v<Object> && !requires { typename Object::ContainedType; }) {
    return Object();
  } else {
    return Object(nullptr);
  }
}
}  // namespace detail

/// Makes each object its type's empty value, and clears the device's cache: tensors, pointers, containers, holders of
/// modules, and what `prepare` returns, which may then only be assigned to or destroyed.
template <typename... Objects>
void release_memory(Objects&... objects) {
  ((objects = detail::nothing<Objects>()), ...);
  clear_device_cache();
}

/// Whether an error says that memory was short, on a device or on the CPU.
bool should_reduce_batch_size(const std::exception& error);

struct BatchSizeSearch {
  std::int64_t starting_batch_size = 128;
  std::function<std::int64_t(std::int64_t batch_size)> reduce_batch_size =
      {};  ///< the next to try; default: nine tenths

  /// The size to try after `batch_size`. Throws Error at zero.
  [[nodiscard]] std::int64_t next(std::int64_t batch_size) const;
};

/// Calls `function(batch_size)` with smaller and smaller sizes while memory is short; returns what it returns.
///
/// With several ranks the function must fail on all of them alike: one that runs out alone leaves the others in their
/// collectives, and ends with their error.
/// Throws what the function throws for another reason, and Error if no size is left.
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
    clear_device_cache();  // behind the handler: the error may hold what the function held
    batch_size = search.next(batch_size);
  }
}

}  // namespace accel
