// Tests of gather_object and broadcast_object_list on simulated ranks and on Gloo. The difficulty is that the ranks
// do not know the sizes of each other's objects.
#include "reference/state/objects.hpp"

#include <gmock/gmock.h>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;
using ::testing::IsEmpty;

namespace accel {
namespace {

using accel::testing::Backend;
using accel::testing::run_ranks;

class ObjectsTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, ObjectsTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return accel::testing::name_of(info.param); });

TEST_P(ObjectsTest, EntriesOfAllRanksComeInTheOrderOfTheRanks) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const std::vector<std::string> mine(rank.rank,
                                        "from " + std::to_string(rank.rank));  // none from rank 0, two from rank 2
    EXPECT_THAT(gather_object(mine), ElementsAre("from 1", "from 2", "from 2"));
  });
}

TEST_P(ObjectsTest, TensorsOfDifferentShapesAreObjects) {
  run_ranks(GetParam(), 2, [](RankContext& rank) {
    const auto all =
        gather_object(std::vector<std::pair<at::Tensor, int>>{{torch::full({rank.rank + 1, 2}, rank.rank), rank.rank}});
    ASSERT_EQ(all.size(), 2);
    EXPECT_TRUE(all[1].first.equal(torch::full({2, 2}, 1)));
    EXPECT_EQ(all[1].second, 1);
  });
}

TEST_P(ObjectsTest, AllListsAreEmpty) {
  run_ranks(GetParam(), 2, [](RankContext&) { EXPECT_THAT(gather_object(std::vector<std::int64_t>{}), IsEmpty()); });
}

// Rank 1 has two entries, rank 0 one and rank 2 three. All must have the two of rank 1 afterwards.
TEST_P(ObjectsTest, ABroadcastReplacesAListOfAnyLength) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    std::vector<std::string> list(rank.rank + 1, std::to_string(rank.rank));
    broadcast_object_list(list, /*from_process=*/1);
    EXPECT_THAT(list, ElementsAre("1", "1"));
    EXPECT_THROW(broadcast_object_list(list, 3), ArgumentError);
  });
}

TEST(ObjectsOfOneRankTest, KeepTheirOrder) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  EXPECT_THAT(gather_object(std::vector<int>{3, 1}), ElementsAre(3, 1));
  std::vector<int> list{2};
  EXPECT_THAT(broadcast_object_list(list), ElementsAre(2));
}

}  // namespace
}  // namespace accel
