#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/collective.hpp"
#include "reference/rank_local/call_site.hpp"

namespace accel {

/// The arguments of one rank's collective call, in which all ranks' calls must agree. Gloo and NCCL do not compare the
/// reduce operation and the shape, and then compute wrong numbers or crash.
struct Call {
  Collective op{};
  std::string_view reduce_op = {};                      // "" if the operation has none; static storage
  std::string_view dtype = {};                          // e.g. "float32"; static storage
  int sparse_dim = -1;                                  // of a tensor in COO format; -1: the tensors are dense
  std::vector<std::vector<std::int64_t>> shapes = {};   // must be equal on all ranks
  std::vector<std::vector<std::int64_t>> strides = {};  // of non-contiguous tensors, which are reduced in memory order
  int root = -1;                                        // group rank; -1: the operation has no root
  std::int64_t bytes = 0;                               // contributed by this rank; for the cost model
  int element_bytes = 1;
  bool is_on_gpu = false;         // in a group that has one transport for GPUs and one for the host
  std::string library_call = {};  // of the program, as in "reduce(mean)"; "" for none
  SourceLine where = {};          // in the program
};

/// Returns whether two ranks' calls agree: in everything except the number of bytes and the source line.
bool agree(const Call& a, const Call& b);

/// E.g. "all_reduce(sum, float32 [64, 10])".
std::string describe(const Call& call);

/// E.g. "train.cpp:42"; "" if unknown.
std::string describe(const SourceLine& where);
bool same_source_line(const SourceLine& a, const SourceLine& b);

/// E.g. {0, 1, 2, 5} -> "ranks 0-2, 5"; {3} -> "rank 3". `ranks` is sorted.
std::string describe_ranks(const std::vector<int>& ranks);

}  // namespace accel
