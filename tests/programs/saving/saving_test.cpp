// Trainings that are killed at any moment, on simulated ranks and on Gloo processes: the next run loads a complete
// checkpoint, at least as new as the last one that a save has reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <random>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/budget.hpp"
#include "tests/support/property_seed.hpp"

namespace accel::testing::saving_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Kind {
  std::string backend, names, saves;
};

class SavingTest : public ::testing::TestWithParam<Kind> {
 protected:
  CommandResult run(int rank, int microseconds) {
    const auto& [backend, names, saves] = GetParam();
    std::vector<std::string> command =
        backend == "sim" ? std::vector<std::string>{bin("sim-run"), "--ranks", "2", "--quiet", "--"}
                         : std::vector<std::string>{bin("accel"), "launch", "--cpu", "--num_processes", "2"};
    for (const auto& argument : {bin("saving_training"), folder_.path("run"), names, saves,
                                 folder_.path("acknowledged"), std::to_string(rank), std::to_string(microseconds)})
      command.push_back(argument);
    return run_command(command);
  }
  // The steps that a run has reported, after what it loaded.
  struct Reported {
    std::int64_t loaded = 0, newest = 0;
  };
  [[nodiscard]] Reported take_report() const {
    std::ifstream in(folder_.path("acknowledged"));
    Reported reported;
    bool has_loaded = false;
    for (std::string word; in >> word;) {
      if (word == "loaded") {
        in >> reported.loaded;
        reported.newest = std::max(reported.newest, reported.loaded);
        EXPECT_FALSE(std::exchange(has_loaded, true));
      } else {
        reported.newest = std::max<std::int64_t>(reported.newest, std::stoll(word));
      }
    }
    EXPECT_TRUE(has_loaded);
    std::filesystem::remove(folder_.path("acknowledged"));
    return reported;
  }

  TemporaryFolder folder_;
};

TEST_P(SavingTest, AKilledTrainingLosesNoCheckpoint) {
  std::filesystem::create_directories(folder_.path("run"));
  const auto seed = property_seeds().back();
  std::mt19937 random(static_cast<std::mt19937::result_type>(seed));
  const int num_kills = num_cases(1) > 1 ? 125 : 5;
  std::int64_t newest = 0;
  for (int kill = 0; kill < num_kills; ++kill) {
    const auto result = run(static_cast<int>(random() % 2), static_cast<int>(random() % 500'000));
    SCOPED_TRACE(seed_setting() + ", kill " + std::to_string(kill) + ": " + result.error);
    ASSERT_NE(result.exit_code, 0);
    ASSERT_THAT(result.error, Not(HasSubstr("CheckpointError")));
    const auto reported = take_report();
    ASSERT_GE(reported.loaded, newest);
    newest = reported.newest;
  }
  EXPECT_GT(newest, 0);
}

std::vector<Kind> kinds() {
  std::vector<Kind> all;
  for (const auto* backend : {"sim", "gloo"}) {
    for (const auto* names : {"one", "automatic"}) {
      for (const auto* saves : {"sync", "async"}) all.push_back({backend, names, saves});
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, SavingTest, ::testing::ValuesIn(kinds()), [](const auto& info) {
  return info.param.backend + "_" + info.param.names + "_" + info.param.saves;
});

}  // namespace
}  // namespace accel::testing::saving_test
