#pragma once

#include <array>
#include <cstddef>
#include <string_view>

namespace accel {

/// Names of the reductions that Gloo has, by the numbers of c10d::ReduceOp::RedOpType.
inline constexpr std::array<std::string_view, 8> kReductionNames = {"sum", "mean", "product", "min",
                                                                    "max", "band", "bor",     "bxor"};

/// "" for a reduction that Gloo lacks.
constexpr std::string_view reduction_name(int reduce_op) {
  return reduce_op >= 0 && reduce_op < static_cast<int>(kReductionNames.size())
             ? kReductionNames[static_cast<std::size_t>(reduce_op)]
             : std::string_view();
}

}  // namespace accel
