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

template <typename T>
bool is_borrowed(const std::shared_ptr<T>& object) {
  return object && (object.use_count() == 0 || std::get_deleter<OwnsNothing>(object) != nullptr);
}

/// Whether the program still has handles of a borrowed object. A registry must not read the object after the last
/// handle has ended, since the object may have ended too.
///
/// Handles of the program hold what `share` returns; the registry holds only the Users.
class Users {
 public:
  template <typename T>
  explicit Users(const std::shared_ptr<T>& object) : is_borrowed_(is_borrowed(object)) {}
  Users() = default;

  /// Counts a user until the result is destroyed.
  [[nodiscard]] std::shared_ptr<const void> share() {
    auto token = token_.lock();
    if (!token) token_ = token = std::make_shared<char>();
    was_shared_ = true;
    return token;
  }
  /// Whether the object is borrowed and had users, all of which have ended.
  [[nodiscard]] bool have_ended() const { return is_borrowed_ && was_shared_ && token_.expired(); }

 private:
  bool is_borrowed_ = false, was_shared_ = false;
  std::weak_ptr<const void> token_;
};

}  // namespace accel::detail
