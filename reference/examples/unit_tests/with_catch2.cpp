// Distributed code under Catch2, on simulated ranks. Catch2's assertions are not thread-safe, so ranks return values
// and the test checks them afterwards.
#define CATCH_CONFIG_MAIN
#include <torch/torch.h>

#include <accel/testing.hpp>
#undef CHECK
#if __has_include(<catch2/catch_all.hpp>)  // Catch2 3
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
namespace Catch::Matchers {
inline auto ContainsSubstring(const std::string& text) { return Contains(text); }
}  // namespace Catch::Matchers
#endif

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
  REQUIRE_THROWS_WITH(run(), Catch::Matchers::ContainsSubstring("rank 1: all_reduce(sum, float32 [3])"));
}
