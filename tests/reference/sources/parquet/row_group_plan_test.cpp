// The plan of which row group holds which row, and the cache of row groups.
#include "reference/sources/parquet/row_group_plan.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "reference/core/errors.hpp"
#include "reference/sources/parquet/row_group_cache.hpp"
#include "tests/support/property.hpp"

namespace accel::sources {
namespace {

using ::testing::ElementsAre;
using testing::expect_property;
using testing::pick;

// Some groups are empty.
RowGroupPlan any_plan() {
  RowGroupPlan plan;
  for (std::size_t file = 0, num_files = pick<std::size_t>(1, 4); file < num_files; ++file) {
    for (int number = 0, count = pick(0, 4); number < count; ++number)
      plan.add({.file = file, .number = number, .num_rows = pick<std::int64_t>(0, 5)});
  }
  return plan;
}

// The group of each row, in the order of the files.
std::vector<std::size_t> groups_of_rows(const RowGroupPlan& plan) {
  std::vector<std::size_t> groups;
  for (std::size_t group = 0; group < plan.groups().size(); ++group)
    groups.insert(groups.end(), plan.groups()[group].num_rows, group);
  return groups;
}

TEST(RowGroupPlanTest, EveryPlaceOfABatchIsReadOnceFromItsRow) {
  expect_property(500, [] {
    const auto plan = any_plan();
    const auto groups = groups_of_rows(plan);
    RC_ASSERT(plan.num_rows() == std::ssize(groups));
    if (groups.empty()) return;
    std::vector<std::int64_t> indices(pick<std::size_t>(0, 9));
    for (auto& index : indices) index = pick<std::int64_t>(0, plan.num_rows());
    std::vector<int> times(indices.size());
    std::int64_t previous = -1;
    for (const auto& read : plan.reads_of(indices)) {
      RC_ASSERT(static_cast<std::int64_t>(read.group) > previous);  // one read per group
      previous = static_cast<std::int64_t>(read.group);
      RC_ASSERT(!read.rows.empty() && read.rows.size() == read.places.size());
      for (std::size_t i = 0; i < read.rows.size(); ++i) {
        const auto index = indices.at(read.places[i]);
        ++times.at(read.places[i]);
        RC_ASSERT(groups[index] == read.group);
        RC_ASSERT(read.rows[i] >= 0 && read.rows[i] < plan.groups()[read.group].num_rows);
        const auto is_first_row = index == 0 || groups[index - 1] != read.group;
        RC_ASSERT((read.rows[i] == 0) == is_first_row);
        if (read.rows[i] > 0) RC_ASSERT(groups[index - read.rows[i]] == read.group);
      }
    }
    RC_ASSERT(times == std::vector<int>(indices.size(), 1));
  });
}

TEST(RowGroupPlanTest, RowsThatDoNotExistAreArgumentErrors) {
  RowGroupPlan plan;
  EXPECT_THROW((void)plan.reads_of({0}), ArgumentError);
  plan.add({.num_rows = 3});
  EXPECT_THROW((void)plan.reads_of({0, 3}), ArgumentError);
  EXPECT_THROW((void)plan.reads_of({-1}), ArgumentError);
}

class RowGroupCacheTest : public ::testing::Test {
 protected:
  void use(std::size_t group) {
    (void)cache_.get(group, [&] {
      reads_.push_back(group);
      return 0;
    });
  }
  RowGroupCache<int> cache_{2};
  std::vector<std::size_t> reads_;
};

TEST_F(RowGroupCacheTest, TheGroupsThatWereUsedLastAreKept) {
  for (const std::size_t group : {0, 1, 0, 2, 0, 1}) use(group);
  EXPECT_THAT(reads_, ElementsAre(0, 1, 2, 1));
}

TEST_F(RowGroupCacheTest, AFailedReadIsRepeated) {
  EXPECT_THROW((void)cache_.get(0, []() -> int { throw std::runtime_error("damaged"); }), std::runtime_error);
  use(0);
  EXPECT_THAT(reads_, ElementsAre(0));
}

// Each read of a group waits for the read of the other group, so that a lock over both would be a deadlock.
TEST_F(RowGroupCacheTest, ThreadsReadAGroupOnceAndOtherGroupsAtTheSameTime) {
  std::atomic<int> num_reads = 0;
  std::latch both_read(2);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 6; ++thread) {
    threads.emplace_back([&, group = static_cast<std::size_t>(thread % 2)] {
      EXPECT_EQ(*cache_.get(group,
                            [&] {
                              ++num_reads;
                              both_read.arrive_and_wait();
                              return static_cast<int>(group);
                            }),
                static_cast<int>(group));
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(num_reads, 2);
}

}  // namespace
}  // namespace accel::sources
