#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Decides which stored chunk holds which part of a requested part of a tensor. Parts are boxes: a range per dimension.
///
///     const std::vector<Box> chunks{{{0, 0}, {3, 4}}, {{3, 0}, {2, 4}}};     // rows 0 to 2, rows 3 and 4
///     const auto reads = checkpoint::plan_box_reads(chunks, {{2, 0}, {2, 4}});
///     reads[0].chunk == 0 && reads[0].from == std::vector<std::int64_t>{2, 0}
///
/// Thread rule: pure functions.
/// Source: torch/distributed/checkpoint/planner_helpers.py, create_read_items_for_chunk_list.
namespace accel {

/// A part of a tensor. A tensor without dimensions has one box without numbers, which holds its element.
struct Box {
  std::vector<std::int64_t> offsets = {}, sizes = {};  ///< one per dimension
  friend bool operator==(const Box&, const Box&) = default;
};

namespace checkpoint {

/// A box of elements that is copied from a chunk to the result.
struct BoxRead {
  std::size_t chunk = 0;                                     ///< index of the chunk
  std::vector<std::int64_t> from = {}, to = {}, sizes = {};  ///< offsets in the chunk and in the result
};

[[nodiscard]] std::int64_t numel_of(const std::vector<std::int64_t>& sizes);

/// Whether a box has the dimensions of a tensor and lies inside of it.
[[nodiscard]] bool is_inside(const Box& box, const std::vector<std::int64_t>& sizes);

/// Returns one read per chunk that overlaps `wanted`. If the chunks cover the tensor once (see problem_of_boxes), the
/// reads cover `wanted` once.
[[nodiscard]] std::vector<BoxRead> plan_box_reads(const std::vector<Box>& chunks, const Box& wanted);

/// Returns why the chunks do not contain every element of a tensor exactly once, or "". Empty chunks are ignored.
/// The number of elements of `sizes` must not overflow.
[[nodiscard]] std::string problem_of_boxes(const std::vector<std::int64_t>& sizes, const std::vector<Box>& chunks);

/// Divides the elements [begin, end) of a tensor in row-major order into boxes, in that order: at most 2 n - 1
/// for n dimensions. An empty tensor gives one empty box, so that it is stored too.
[[nodiscard]] std::vector<Box> boxes_of_range(const std::vector<std::int64_t>& sizes, std::int64_t begin,
                                              std::int64_t end);

}  // namespace checkpoint
}  // namespace accel
