// The simulator's virtual time of a pipeline has the bubble that `sim-run pipeline` computes from the schedule.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>

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
};

class PipelineBubbleTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineBubbleTest,
                         ::testing::Values(Case{"gpipe", 1}, Case{"1f1b", 1}, Case{"interleaved_1f1b", 2},
                                           Case{"zbv", 2}, Case{"dualpipe_v", 2}, Case{"zb_h1", 1},
                                           Case{"interleaved_zero_bubble", 2}),
                         [](const auto& info) { return info.param.schedule; });

// Mean seconds of each kind of computation of a stage. The first stage has no gradient of an input, so that its weight
// gradients are all of its backward.
struct StageCosts {
  std::map<char, double> seconds;
  std::map<char, int> count;

  void add(char kind, double duration) {
    seconds[kind] += duration;
    ++count[kind];
  }
  [[nodiscard]] double of(char kind) const { return count.contains(kind) ? seconds.at(kind) / count.at(kind) : 0; }
  // Of both halves of a backward: either may come without the other.
  [[nodiscard]] std::string text() const {
    const bool is_split = count.contains('W') || count.contains('I');
    const double input = is_split ? of('I') : of('B') / 2, weight = is_split ? of('W') : of('B') / 2;
    return std::to_string(of('F')) + "," + std::to_string(input) + "," + std::to_string(weight);
  }
};

TEST_P(PipelineBubbleTest, VirtualTimeHasTheBubbleOfTheSchedule) {
  const auto& [schedule, stages_per_rank] = GetParam();
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
  std::map<int, StageCosts> stages;
  for (const auto& own : computations) {
    work += own.end - own.begin;
    begin = std::min(begin, own.begin);
    end = std::max(end, own.end);
    const char kind = *std::find_if(own.name.begin(), own.name.end(), [](char c) { return c >= 'A'; });
    stages[std::stoi(own.name)].add(kind, own.end - own.begin);
  }
  std::string costs;
  for (const auto& [stage, of_stage] : stages) costs += (costs.empty() ? "" : ",") + of_stage.text();
  const auto proof = run_command({bin("sim-run"), "pipeline", "--schedule", schedule, "--stages",
                                  std::to_string(kRanks * stages_per_rank), "--ranks", std::to_string(kRanks),
                                  "--micro-batches", std::to_string(kMicroBatches), "--costs", costs, "--json"});
  ASSERT_EQ(proof.exit_code, 0) << proof.error;
  const double expected = Json::parse(proof.output).at("bubble");
  EXPECT_NEAR(1 - work / (kRanks * (end - begin)), expected, 0.05 * expected);
}

}  // namespace
}  // namespace accel::testing::pipeline_bubble_test
