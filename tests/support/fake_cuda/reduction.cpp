#include "tests/support/fake_cuda/reduction.hpp"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace accel::testing::fake_cuda {
namespace {

template <typename Use>
void with_type(ncclDataType_t type, Use&& use) {
  switch (type) {
    case ncclInt8: return use(std::int8_t());
    case ncclUint8: return use(std::uint8_t());
    case ncclInt32: return use(std::int32_t());
    case ncclUint32: return use(std::uint32_t());
    case ncclInt64: return use(std::int64_t());
    case ncclUint64: return use(std::uint64_t());
    case ncclFloat16: return use(c10::Half());
    case ncclFloat32: return use(float());
    case ncclFloat64: return use(double());
    case ncclBfloat16: return use(c10::BFloat16());
    default: std::abort();
  }
}

}  // namespace

void accumulate(char* to, const char* from, std::size_t count, ncclDataType_t type, ncclRedOp_t reduction) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    auto* const into = reinterpret_cast<T*>(to);
    const auto* const values = reinterpret_cast<const T*>(from);
    for (std::size_t index = 0; index < count; ++index) {
      const T left = into[index], right = values[index];
      switch (reduction) {
        case ncclProd: into[index] = static_cast<T>(left * right); break;
        case ncclMax: into[index] = std::max(left, right); break;
        case ncclMin: into[index] = std::min(left, right); break;
        default: into[index] = static_cast<T>(left + right); break;
      }
    }
  });
}

void divide(char* values, std::size_t count, ncclDataType_t type, int divisor) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    auto* const each = reinterpret_cast<T*>(values);
    for (std::size_t index = 0; index < count; ++index)
      each[index] = static_cast<T>(each[index] / static_cast<T>(divisor));
  });
}

}  // namespace accel::testing::fake_cuda
