// Properties of the plan: whatever the shards, every element is read once.
#include "reference/checkpoint/distributed/box_plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>

#include "tests/support/cpu_time.hpp"
#include "tests/support/property.hpp"

namespace accel::checkpoint {
namespace {

using ::testing::ElementsAre;
using testing::expect_property;
using ::testing::HasSubstr;
using testing::pick;
using Sizes = std::vector<std::int64_t>;

Sizes any_sizes(std::int64_t smallest = 0) {
  Sizes sizes(pick<std::size_t>(0, 4));
  for (auto& size : sizes) size = pick<std::int64_t>(smallest, 6);
  return sizes;
}

Box whole_box(const Sizes& sizes) { return {Sizes(sizes.size()), sizes}; }

// Cuts boxes in two at random places, so that they cover the tensor once in an irregular way.
std::vector<Box> any_division(const Sizes& sizes) {
  std::vector<Box> boxes{whole_box(sizes)};
  for (int cuts = sizes.empty() ? 0 : pick(0, 6); cuts > 0; --cuts) {
    auto& box = boxes[pick<std::size_t>(0, boxes.size())];
    const auto dimension = pick<std::size_t>(0, sizes.size());
    auto rest = box;
    box.sizes[dimension] = pick<std::int64_t>(0, box.sizes[dimension] + 1);
    rest.offsets[dimension] += box.sizes[dimension];
    rest.sizes[dimension] -= box.sizes[dimension];
    boxes.push_back(rest);
  }
  std::reverse(boxes.begin(), boxes.end());
  return boxes;
}

Box any_box(const Sizes& sizes) {
  Box box;
  for (const auto size : sizes) {
    box.offsets.push_back(pick<std::int64_t>(0, size + 1));
    box.sizes.push_back(pick<std::int64_t>(0, size - box.offsets.back() + 1));
  }
  return box;
}

// The indices of a box's elements in the row-major order of a tensor of `sizes`.
std::vector<std::int64_t> elements_of(const Sizes& offsets, const Sizes& box_sizes, const Sizes& sizes) {
  std::vector<std::int64_t> elements{0};
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    std::vector<std::int64_t> next;
    for (const auto element : elements) {
      for (std::int64_t k = 0; k < box_sizes[i]; ++k) next.push_back(element * sizes[i] + offsets[i] + k);
    }
    elements = std::move(next);
  }
  return elements;
}

Sizes sum_of(Sizes a, const Sizes& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

TEST(BoxPlanTest, AnyShardingReadsEveryElementOfAnyOtherOnce) {
  expect_property(500, [] {
    const auto sizes = any_sizes();
    const auto chunks = any_division(sizes);
    RC_ASSERT(problem_of_boxes(sizes, chunks) == "");
    for (const auto& wanted : any_division(sizes)) {
      std::vector<std::int64_t> read_elements;
      for (const auto& read : plan_box_reads(chunks, wanted)) {
        const auto from = elements_of(sum_of(chunks[read.chunk].offsets, read.from), read.sizes, sizes);
        RC_ASSERT(from == elements_of(sum_of(wanted.offsets, read.to), read.sizes, sizes));
        RC_ASSERT(is_inside({read.from, read.sizes}, chunks[read.chunk].sizes));
        read_elements.insert(read_elements.end(), from.begin(), from.end());
      }
      std::sort(read_elements.begin(), read_elements.end());
      RC_ASSERT(read_elements == elements_of(wanted.offsets, wanted.sizes, sizes));
    }
  });
}

TEST(BoxPlanTest, OnlyChunksThatContainAnElementAreRead) {
  const std::vector<Box> rows{{{0, 0}, {2, 4}}, {{2, 0}, {2, 4}}, {{4, 0}, {1, 4}}};
  const auto reads = plan_box_reads(rows, {{1, 1}, {3, 2}});
  ASSERT_EQ(reads.size(), 2U);
  EXPECT_EQ(reads[0].chunk, 0U);
  EXPECT_THAT(reads[0].from, ElementsAre(1, 1));
  EXPECT_THAT(reads[0].sizes, ElementsAre(1, 2));
  EXPECT_EQ(reads[1].chunk, 1U);
  EXPECT_THAT(reads[1].to, ElementsAre(1, 0));
  EXPECT_THAT(reads[1].sizes, ElementsAre(2, 2));
}

// A chunk that is left out, doubled, moved or larger.
TEST(BoxPlanTest, ChunksThatDoNotCoverTheTensorOnceAreFound) {
  expect_property(500, [] {
    const auto sizes = any_sizes(/*smallest=*/1);
    auto chunks = any_division(sizes);
    const auto filled =
        std::find_if(chunks.begin(), chunks.end(), [](const Box& box) { return numel_of(box.sizes) > 0; });
    switch (pick(0, 4)) {
      case 0: chunks.erase(filled); break;
      case 1: chunks.push_back(*filled); break;
      case 2: chunks.push_back({any_box(sizes).offsets, Sizes(sizes.size(), 1)}); break;
      default: filled->sizes.push_back(1); break;
    }
    RC_ASSERT(problem_of_boxes(sizes, chunks) != "");
  });
}

TEST(BoxPlanTest, ProblemsNameTheChunks) {
  EXPECT_EQ(problem_of_boxes({4}, {{{0}, {2}}}), "lacks 2 of 4 elements");
  EXPECT_EQ(problem_of_boxes({4}, {{{0}, {3}}, {{2}, {2}}}),
            "the chunks at [0] of sizes [3] and at [2] of sizes [2] overlap");
  EXPECT_THAT(problem_of_boxes({4}, {{{3}, {2}}}),
              HasSubstr("the chunk at [3] of sizes [2] is outside of the sizes [4]"));
  EXPECT_THAT(problem_of_boxes({4}, {{{INT64_MAX}, {1}}}), HasSubstr("is outside"));
  EXPECT_THAT(problem_of_boxes({4}, {{{-1}, {1}}}), HasSubstr("is outside"));
  EXPECT_EQ(problem_of_boxes({}, {{{}, {}}}), "");
  EXPECT_EQ(problem_of_boxes({}, {}), "lacks 1 of 1 elements");
}

// FSDP's flat parameters divide a tensor at any element.
TEST(BoxPlanTest, ARangeOfElementsIsDividedIntoBoxesInItsOrder) {
  expect_property(500, [] {
    const auto sizes = any_sizes();
    const auto numel = numel_of(sizes);
    const auto begin = pick<std::int64_t>(0, numel + 1), end = pick<std::int64_t>(begin, numel + 1);
    const auto boxes = boxes_of_range(sizes, begin, end);
    std::vector<std::int64_t> elements, expected;
    for (const auto& box : boxes) {
      const auto of_box = elements_of(box.offsets, box.sizes, sizes);
      elements.insert(elements.end(), of_box.begin(), of_box.end());
    }
    for (auto element = begin; element < end; ++element) expected.push_back(element);
    RC_ASSERT(elements == expected);
    RC_ASSERT(boxes.size() <= std::max<std::size_t>(1, 2 * sizes.size() - (sizes.empty() ? 0 : 1)));
  });
  EXPECT_THAT(boxes_of_range({3, 4}, 2, 11),
              ElementsAre(Box{{0, 2}, {1, 2}}, Box{{1, 0}, {1, 4}}, Box{{2, 0}, {1, 3}}));
  EXPECT_THAT(boxes_of_range({3, 4}, 5, 5), ElementsAre());
  EXPECT_THAT(boxes_of_range({0, 4}, 0, 0), ElementsAre(Box{{0, 0}, {0, 4}}));
}

// 100,000 columns of a tensor that has more rows.
TEST(BoxPlanTest, ManyChunksAreComparedInLinearTime) {
  constexpr std::int64_t kCount = 100'000;
  std::vector<Box> chunks;
  for (std::int64_t i = 0; i < kCount; ++i) chunks.push_back({{0, i}, {2 * kCount, 1}});
  EXPECT_LT(testing::cpu_seconds([&] { EXPECT_EQ(problem_of_boxes({2 * kCount, kCount}, chunks), ""); }), 4);
}

}  // namespace
}  // namespace accel::checkpoint
