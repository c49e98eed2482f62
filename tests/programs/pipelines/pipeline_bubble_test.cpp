// The simulator's virtual time of a pipeline has the bubble that `sim-run pipeline` computes from the schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::pipeline_bubble_test {
namespace {

using Json = nlohmann::json;

constexpr int kRanks = 4, kMicroBatches = 8;

struct Computation {
  std::string name;
  double begin = 0, end = 0;
};

std::vector<Computation> computations_in(const std::string& timeline) {
  std::ifstream in(timeline);
  const std::regex action(R"(\d+[FBIW]\d+)");
  std::vector<Computation> all;
  const auto json = Json::parse(in);
  for (const auto& event : json.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const std::string name = event.at("name");
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    if (std::regex_match(name, action)) all.push_back({name, begin, end});
  }
  return all;
}

struct Case {
  std::string schedule;
  int stages_per_rank;
  double tolerance;  // relative
};

class PipelineBubbleTest : public ::testing::TestWithParam<Case> {};

// Stages that split their backward have a first stage without gradient of an input, whose weight gradients take longer
// than the schedule assumes.
INSTANTIATE_TEST_SUITE_P(Schedules, PipelineBubbleTest,
                         ::testing::Values(Case{"gpipe", 1, 0.05}, Case{"1f1b", 1, 0.05},
                                           Case{"interleaved_1f1b", 2, 0.05}, Case{"zbv", 2, 0.05},
                                           Case{"dualpipe_v", 2, 0.05}, Case{"zb_h1", 1, 0.1},
                                           Case{"interleaved_zero_bubble", 2, 0.1}),
                         [](const auto& info) { return info.param.schedule; });

TEST_P(PipelineBubbleTest, VirtualTimeHasTheBubbleOfTheSchedule) {
  const auto& [schedule, stages_per_rank, tolerance] = GetParam();
  const TemporaryFolder folder;
  const auto timeline = folder.path("timeline.json");
  const auto run =
      run_command({bin("sim-run"), "--ranks", std::to_string(kRanks), "--network",
                   source("configs/sim/networks/nvlink_8.yaml"), "--timeline", timeline, "--", bin("equal_stages"),
                   schedule, std::to_string(stages_per_rank), std::to_string(kMicroBatches)});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  const auto computations = computations_in(timeline);
  ASSERT_FALSE(computations.empty());
  double work = 0, begin = 1e300, end = 0;
  std::map<char, double> seconds;
  std::map<char, std::set<std::string>> names;
  for (const auto& own : computations) {
    work += own.end - own.begin;
    begin = std::min(begin, own.begin);
    end = std::max(end, own.end);
    const char kind = *std::find_if(own.name.begin(), own.name.end(), [](char c) { return c >= 'A'; });
    seconds[kind] += own.end - own.begin;
    names[kind].insert(own.name);
  }
  const auto cost = [&](char kind) {
    return seconds[kind] / static_cast<double>(std::max<std::size_t>(1, names[kind].size()));
  };
  const double backward = cost('B') / 2, input = cost('I') > 0 ? cost('I') : backward,
               weight = cost('W') > 0 ? cost('W') : backward;
  const auto proof = run_command(
      {bin("sim-run"), "pipeline", "--schedule", schedule, "--stages", std::to_string(kRanks * stages_per_rank),
       "--ranks", std::to_string(kRanks), "--micro-batches", std::to_string(kMicroBatches), "--costs",
       std::to_string(cost('F')) + "," + std::to_string(input) + "," + std::to_string(weight), "--json"});
  ASSERT_EQ(proof.exit_code, 0) << proof.error;
  const double expected = Json::parse(proof.output).at("bubble");
  EXPECT_NEAR(1 - work / (kRanks * (end - begin)), expected, tolerance * expected);
}

}  // namespace
}  // namespace accel::testing::pipeline_bubble_test
