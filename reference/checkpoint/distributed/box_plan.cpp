#include "reference/checkpoint/distributed/box_plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <tuple>
#include <utility>

namespace accel::checkpoint {
namespace {

using Sizes = std::vector<std::int64_t>;

std::string text_of(const Box& box) {
  return fmt::format("at [{}] of sizes [{}]", fmt::join(box.offsets, ", "), fmt::join(box.sizes, ", "));
}

// Begin and end of the common elements of two boxes in one dimension.
std::pair<std::int64_t, std::int64_t> overlap(const Box& a, const Box& b, std::size_t dimension) {
  return {std::max(a.offsets[dimension], b.offsets[dimension]),
          std::min(a.offsets[dimension] + a.sizes[dimension], b.offsets[dimension] + b.sizes[dimension])};
}

bool do_overlap(const Box& a, const Box& b) {
  for (std::size_t i = 0; i < a.sizes.size(); ++i) {
    if (const auto [begin, end] = overlap(a, b, i); begin >= end) return false;
  }
  return true;
}

// The dimension in which the most boxes begin at different places.
std::size_t most_divided_dimension(const std::vector<const Box*>& boxes, std::size_t num_dimensions) {
  std::size_t dimension = 0, most = 0;
  for (std::size_t i = 0; i < num_dimensions; ++i) {
    std::vector<std::int64_t> begins;
    for (const auto* box : boxes) begins.push_back(box->offsets[i]);
    std::sort(begins.begin(), begins.end());
    const auto count = static_cast<std::size_t>(std::unique(begins.begin(), begins.end()) - begins.begin());
    if (count > most) std::tie(dimension, most) = std::pair(i, count);
  }
  return dimension;
}

// Compares each box only with those that end after it begins, in the dimension that is divided most: in another one, a
// file of many chunks could make this quadratic.
std::string problem_of_overlaps(std::vector<const Box*> boxes, const Sizes& sizes) {
  const auto dimension = most_divided_dimension(boxes, sizes.size());
  const auto begin_of = [&](const Box* box) { return sizes.empty() ? 0 : box->offsets[dimension]; };
  const auto end_of = [&](const Box* box) { return sizes.empty() ? 1 : begin_of(box) + box->sizes[dimension]; };
  std::sort(boxes.begin(), boxes.end(), [&](const Box* a, const Box* b) { return begin_of(a) < begin_of(b); });
  std::vector<const Box*> open;
  for (const auto* box : boxes) {
    std::erase_if(open, [&](const Box* other) { return end_of(other) <= begin_of(box); });
    for (const auto* other : open) {
      if (do_overlap(*other, *box)) return fmt::format("the chunks {} and {} overlap", text_of(*other), text_of(*box));
    }
    open.push_back(box);
  }
  return "";
}

// Divides a range of the elements at the index `prefix` of the first dimensions.
void add_boxes(std::vector<Box>& boxes, const Sizes& sizes, const Sizes& prefix, std::int64_t begin, std::int64_t end) {
  if (begin == end) return;
  const auto dimension = prefix.size();
  if (dimension == sizes.size()) {
    boxes.push_back({prefix, Sizes(sizes.size(), 1)});
    return;
  }
  const auto row = std::accumulate(sizes.begin() + static_cast<std::ptrdiff_t>(dimension) + 1, sizes.end(),
                                   std::int64_t{1}, std::multiplies<>());
  const auto add_part_of_row = [&](std::int64_t index, std::int64_t from, std::int64_t to) {
    auto place = prefix;
    place.push_back(index);
    add_boxes(boxes, sizes, place, from, to);
  };
  const auto first = (begin + row - 1) / row, last = end / row;  // complete rows
  if (first > last) return add_part_of_row(last, begin - last * row, end - last * row);
  add_part_of_row(first - 1, begin - (first - 1) * row, row);
  if (first < last) {
    Box rows{prefix, Sizes(dimension, 1)};
    rows.offsets.push_back(first);
    rows.offsets.resize(sizes.size());
    rows.sizes.push_back(last - first);
    rows.sizes.insert(rows.sizes.end(), sizes.begin() + static_cast<std::ptrdiff_t>(dimension) + 1, sizes.end());
    boxes.push_back(std::move(rows));
  }
  add_part_of_row(last, 0, end - last * row);
}

}  // namespace

std::int64_t numel_of(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
}

// Written without sums of the file's numbers, which may overflow.
bool is_inside(const Box& box, const Sizes& sizes) {
  if (box.offsets.size() != sizes.size() || box.sizes.size() != sizes.size()) return false;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (box.sizes[i] < 0 || box.sizes[i] > sizes[i]) return false;
    if (box.offsets[i] < 0 || box.offsets[i] > sizes[i] - box.sizes[i]) return false;
  }
  return true;
}

std::vector<BoxRead> plan_box_reads(const std::vector<Box>& chunks, const Box& wanted) {
  std::vector<BoxRead> reads;
  for (std::size_t index = 0; index < chunks.size(); ++index) {
    const auto& chunk = chunks[index];
    if (!do_overlap(chunk, wanted)) continue;
    BoxRead read{.chunk = index};
    for (std::size_t i = 0; i < wanted.sizes.size(); ++i) {
      const auto [begin, end] = overlap(chunk, wanted, i);
      read.from.push_back(begin - chunk.offsets[i]);
      read.to.push_back(begin - wanted.offsets[i]);
      read.sizes.push_back(end - begin);
    }
    reads.push_back(std::move(read));
  }
  return reads;
}

std::string problem_of_boxes(const Sizes& sizes, const std::vector<Box>& chunks) {
  std::vector<const Box*> filled;
  std::int64_t count = 0;
  for (const auto& chunk : chunks) {
    if (!is_inside(chunk, sizes))
      return fmt::format("the chunk {} is outside of the sizes [{}]", text_of(chunk), fmt::join(sizes, ", "));
    if (numel_of(chunk.sizes) > 0) filled.push_back(&chunk);
  }
  if (auto problem = problem_of_overlaps(filled, sizes); !problem.empty()) return problem;
  for (const auto* chunk : filled) count += numel_of(chunk->sizes);
  return count == numel_of(sizes) ? ""
                                  : fmt::format("lacks {} of {} elements", numel_of(sizes) - count, numel_of(sizes));
}

std::vector<Box> boxes_of_range(const Sizes& sizes, std::int64_t begin, std::int64_t end) {
  if (numel_of(sizes) == 0) return {{Sizes(sizes.size()), sizes}};
  std::vector<Box> boxes;
  add_boxes(boxes, sizes, {}, begin, end);
  return boxes;
}

}  // namespace accel::checkpoint
