// Tests of distributed code in Catch2, on simulated ranks. Catch2's assertions are not thread-safe, so ranks return
// values, which the test checks afterwards.
#define CATCH_CONFIG_MAIN
#include <torch/torch.h>

#include <accel/testing.hpp>
#undef CHECK
#include <catch2/catch.hpp>

TEST_CASE("a broadcast gives every rank the root's values") {
  const auto sums = accel::testing::run_ranks(8, [](accel::RankContext& rank) {
    auto values = torch::full({4}, rank.rank, torch::kFloat);
    rank.world.broadcast(values, /*root=*/3).wait();
    return values.sum().item<float>();
  });
  REQUIRE(sums == std::vector<float>(8, 12));
}

TEST_CASE("calls that differ are an error with every rank's call in it") {
  const auto run = [] {
    accel::testing::run_ranks(2, [](accel::RankContext& rank) {
      auto values = torch::ones({2 + rank.rank});
      rank.world.all_reduce(values).wait();
    });
  };
  REQUIRE_THROWS_WITH(run(), Catch::Contains("rank 1: all_reduce(sum, float32 [3])"));
}
