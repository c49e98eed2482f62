// Recorded trainings of torch.distributed.pipelining, against ours: losses and parameters.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "properties/oracle/answers.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_pipeline_runs_test {
namespace {

// CPUs with other vector widths round products differently. live.py compares bits on one machine.
constexpr double kTolerance = 1e-5;

void expect_near(const OrderedJson& found, const Json& expected, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (std::size_t index = 0; index < expected.size(); ++index)
    EXPECT_NEAR(found[index].get<double>(), expected[index].get<double>(),
                kTolerance * std::max(1.0, std::abs(expected[index].get<double>())))
        << what;
}

void expect_near_by_name(const OrderedJson& found, const Json& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected.items()) {
    ASSERT_TRUE(found.contains(name)) << name;
    expect_near(found[name], values, name);
  }
}

TEST(RecordedPipelineRunsTest, TrainingsAreThoseOfPyTorchsPipelines) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/pipeline_runs.jsonl");
  int compared = 0;
  for (std::string line; std::getline(in, line);) {
    const auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    SCOPED_TRACE(record["request"].dump());
    const auto& expected = record["expected"];
    for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
      const auto found = collect_ranks(backend, static_cast<int>(expected.size()), [&](RankContext& rank) {
        return pipeline_run_answer(rank, record["request"].dump());
      });
      for (std::size_t rank = 0; rank < found.size(); ++rank) {
        SCOPED_TRACE(fmt::format("rank {}", rank));
        // Only the rank of torch's last stage has losses.
        if (!expected[rank]["losses"].empty()) expect_near(found[rank]["losses"], expected[rank]["losses"], "losses");
        expect_near_by_name(found[rank]["values"], expected[rank]["values"]);
      }
    }
    ++compared;
  }
  EXPECT_GE(compared, 36);
}

}  // namespace
}  // namespace accel::testing::recorded_pipeline_runs_test
