#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accel::sim {

/// What one rank asks of its group in one collective. Two calls meet only if they are equal: real backends forget the
/// reduce op and the shape, and then compute wrong numbers or die.
struct Call {
  std::string_view op;                          // Accelerate's spelling, e.g. "all_reduce"; static storage
  std::string_view reduce_op = {};              // "" where the operation has none; static storage
  std::string_view dtype = {};                  // e.g. "float32"; static storage
  std::vector<std::vector<std::int64_t>> shapes = {};  // of the tensors that must be equal on all ranks
  int root = -1;                                // group rank, -1 where there is none

  friend bool operator==(const Call&, const Call&) = default;
};

/// E.g. "all_reduce(sum, float32 [64, 10])".
std::string describe(const Call& call);

/// E.g. {0, 1, 2, 5} -> "ranks 0-2, 5"; {3} -> "rank 3". `ranks` is sorted.
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace accel::sim
