#pragma once

#include <memory>

namespace accel::detail {

/// The deleter of a pointer to an object that no shared_ptr owns, for example a module on the stack.
struct OwnsNothing {
  void operator()(const void*) const {}
};

/// Returns a non-owning shared_ptr to `object`. The caller keeps the object alive.
template <typename T>
std::shared_ptr<T> borrowed(T& object) {
  return {std::shared_ptr<void>(), &object};
}

}  // namespace accel::detail
