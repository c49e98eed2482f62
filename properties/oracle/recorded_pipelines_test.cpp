// Recorded tables of torch.distributed.pipelining, against ours.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <set>

#include "properties/oracle/answers.hpp"

namespace accel::testing::recorded_pipelines_test {
namespace {

TEST(RecordedPipelinesTest, TablesAreThoseOfTorch) {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/pipelines.jsonl");
  std::set<std::string> schedules;
  for (std::string line; std::getline(in, line);) {
    const auto record = Json::parse(line);
    if (record.contains("recorded")) continue;  // how the file was made
    const auto& request = record["request"];
    EXPECT_EQ(pipeline_answer(request), record["expected"]) << request.dump();
    schedules.insert(request["schedule"]);
  }
  EXPECT_EQ(schedules.size(), 6u);
}

}  // namespace
}  // namespace accel::testing::recorded_pipelines_test
