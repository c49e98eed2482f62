// Recorded outputs and gradients of PyTorch's attention over a divided sequence, against ours.
#include <gtest/gtest.h>

#include <fstream>

#include "properties/oracle/answers.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_context_parallel_test {
namespace {

// Blocks are summed in other orders.
void expect_near(const std::vector<double>& found, const std::vector<double>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12);
}

TEST(RecordedContextParallelTest, EveryFunctionHasTheResultsOfPyTorchsRing) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/context_parallel.jsonl");
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    for (const auto* function : {"all_gather_attention", "ring_attention", "ulysses_attention"}) {
      record["request"]["function"] = function;
      SCOPED_TRACE(record["request"].dump());
      const auto& expected = record["expected"];
      const auto found = collect_ranks(Backend::kSim, static_cast<int>(expected.size()), [&](RankContext& rank) {
        return context_parallel_answer(rank, record["request"].dump());
      });
      for (std::size_t rank = 0; rank < found.size(); ++rank) {
        EXPECT_EQ(found[rank]["positions"], OrderedJson(expected[rank]["positions"]));
        for (const auto* name : {"output", "queries", "keys", "values"})
          expect_near(found[rank][name], expected[rank][name]);
      }
      ++compared;
    }
  }
  EXPECT_GE(compared, 24);
}

}  // namespace
}  // namespace accel::testing::recorded_context_parallel_test
