#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>
#include <vector>

#include "sim/collectives/collective.hpp"

namespace accel::sim {

/// What one rank asks of its group in one collective. Two calls meet only if they agree: real backends forget the
/// reduce op and the shape, and then compute wrong numbers or die.
struct Call {
  Collective op{};
  std::string_view reduce_op = {};                     // "" where the operation has none; static storage
  std::string_view dtype = {};                         // e.g. "float32"; static storage
  std::vector<std::vector<std::int64_t>> shapes = {};  // of the tensors that must be equal on all ranks
  std::vector<std::vector<std::int64_t>> strides =
      {};                  // of those that are not contiguous: elements meet in the order of memory
  int root = -1;           // group rank, -1 where there is none
  std::int64_t bytes = 0;  // that this rank contributes, for costs
  int element_bytes = 1;
  std::source_location where = {};  // the program's line; line 0 where it is not known
};

/// Whether two ranks' calls fit together: all but the amounts and the line.
bool agree(const Call& a, const Call& b);

/// E.g. "all_reduce(sum, float32 [64, 10])".
std::string describe(const Call& call);

/// E.g. "train.cpp:42", "" where it is not known.
std::string describe(const std::source_location& where);
bool same_place(const std::source_location& a, const std::source_location& b);

/// E.g. {0, 1, 2, 5} -> "ranks 0-2, 5"; {3} -> "rank 3". `ranks` is sorted.
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace accel::sim
