#pragma once

#include <memory>

namespace accel::detail {

/// A pointer to an object that somebody else owns and keeps alive.
template <typename T>
std::shared_ptr<T> borrowed(T& object) {
  return {std::shared_ptr<void>(), &object};
}

}  // namespace accel::detail
