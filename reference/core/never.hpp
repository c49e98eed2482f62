#pragma once

namespace accel::detail {

/// For static_assert(kNever<T>, "..."), which fails only where it is instantiated.
template <typename T>
inline constexpr bool kNever = false;

}  // namespace accel::detail
