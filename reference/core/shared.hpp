#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

/// Read-only data that all ranks of a process share.
///
///     auto images = accel::shared<Images>("fashion-mnist/train", [] { return load_images(path); });
///
/// The first caller under a key makes the value, the others wait for it; it lives as long as somebody holds it.
/// Fashion-MNIST as float32 is 188 MB: 64 simulated ranks with a copy each would need 12 GB.
///
/// Thread rule: any thread. `make` may throw (every waiting caller then makes its own attempt) and must not call
/// `shared` with its own key.
namespace accel {

namespace detail {
std::shared_ptr<const void> shared_value(const std::string& key, const char* type,
                                         const std::function<std::shared_ptr<const void>()>& make);
}  // namespace detail

template <typename T, typename Make>
std::shared_ptr<const T> shared(const std::string& key, Make&& make) {
  const auto value = detail::shared_value(
      key, typeid(T).name(), [&]() -> std::shared_ptr<const void> { return std::make_shared<const T>(make()); });
  return std::static_pointer_cast<const T>(value);
}

/// The one copy that is kept of equal indices, as long as somebody holds it. Every rank draws the order of all samples:
/// of 60,000 that is 0.5 MB, and 1,024 simulated ranks draw the same.
std::shared_ptr<const std::vector<std::int64_t>> shared_copy(std::vector<std::int64_t> indices);

}  // namespace accel
