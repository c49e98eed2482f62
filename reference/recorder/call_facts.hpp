#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/recorder/job_record.hpp"

/// What the simulator's Call holds of a call, for the record:
///
///     auto facts = facts_of(Collective::kAllReduce, /*reduce_op=*/0, /*root=*/-1);
///     add_tensor(facts, {.dtype = 6, .bytes = 32, .sizes = sizes, .strides = strides});
namespace accel::recorder {

/// A tensor of a call.
struct TensorFacts {
  std::int8_t dtype = -1;  ///< c10::ScalarType
  std::int64_t bytes = 0;  ///< of its elements
  std::span<const std::int64_t> sizes;
  std::span<const std::int64_t> strides =
      {};                       ///< empty if the elements lie in the order of the dimensions, without gaps
  std::int8_t sparse_dim = -1;  ///< -1: dense
};

/// Facts of a call without its tensors. `reduce_op` and `root` are ignored where the collective has none.
CallFacts facts_of(Collective op, std::uint8_t reduce_op, std::int32_t root);
/// Adds the next tensor. Those of a scatter are the outputs, since the input list is on the root only.
void add_tensor(CallFacts& facts, const TensorFacts& tensor);

/// What the ranks of an all-to-all exchange with each other, by group rank.
struct Parts {
  std::vector<Part> sent, expected;
};
/// Of all_to_all_single: the rows of a tensor that go to each rank. `splits`: empty: equal parts.
std::vector<Part> parts_of_rows(std::span<const std::int64_t> sizes, std::span<const std::int64_t> splits,
                                std::size_t num_ranks);
/// Number of elements of a tensor of this shape.
std::int64_t elements_of(std::span<const std::int64_t> sizes);
/// Of all_to_all: a tensor of the list.
Part part_of(std::span<const std::int64_t> sizes);

/// Whether all ranks must have tensors of one shape. In an all-to-all each may send another number of rows.
constexpr bool have_equal_shapes(Collective op) {
  return op != Collective::kAllToAll && op != Collective::kAllToAllSingle;
}

/// Whether the tensors of a call are its outputs, not its inputs.
constexpr bool is_described_by_outputs(Collective op) { return op == Collective::kScatter || op == Collective::kRecv; }

}  // namespace accel::recorder
