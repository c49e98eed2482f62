// Recorded trainings of torch.distributed.pipelining, against ours: losses and parameters to the bit.
#include <gtest/gtest.h>

#include <fstream>

#include "properties/oracle/answers.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::recorded_pipeline_runs_test {
namespace {

TEST(RecordedPipelineRunsTest, TrainingsHaveTheBitsOfPyTorchsPipelines) {
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
        // Only the rank of torch's last stage has losses.
        if (!expected[rank]["losses"].empty()) EXPECT_EQ(found[rank]["losses"], OrderedJson(expected[rank]["losses"]));
        EXPECT_EQ(Json(found[rank]["parameters"]), expected[rank]["parameters"]) << "rank " << rank;
      }
    }
    ++compared;
  }
  EXPECT_GE(compared, 36);
}

}  // namespace
}  // namespace accel::testing::recorded_pipeline_runs_test
