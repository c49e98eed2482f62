#pragma once

#include <memory>

namespace accel::detail {

/// Returns a non-owning shared_ptr to `object`. The caller keeps the object alive.
template <typename T>
std::shared_ptr<T> borrowed(T& object) {
  return {std::shared_ptr<void>(), &object};
}

}  // namespace accel::detail
