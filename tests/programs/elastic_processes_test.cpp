// Trainings over real Gloo processes, of which some are killed at any moment: the others end with the parameters of an
// undisturbed training.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <future>
#include <random>
#include <sstream>
#include <thread>

#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/trace.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::elastic_processes_test {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string content_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

struct Kill {
  int rank = 0;
  milliseconds after{0};  // after the training has begun, or after the kill before it
  int signal = SIGKILL;
};

class ElasticProcessesTest : public ::testing::Test {
 protected:
  // The processes of ranks that write to the trace, by the ranks with which they have started.
  [[nodiscard]] std::map<int, pid_t> rank_processes() const {
    std::map<int, pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const auto name = entry.path().filename().string();
      if (!std::all_of(name.begin(), name.end(), ::isdigit)) continue;
      const auto command = content_of(entry.path() / "cmdline");
      if (command.find("--worker-dir") == std::string::npos || command.find(trace_) == std::string::npos) continue;
      const auto environment = std::string(1, '\0') + content_of(entry.path() / "environ");
      const auto place = environment.find(std::string(1, '\0') + "RANK=");
      if (place != std::string::npos) found[std::stoi(environment.substr(place + 6))] = std::stoi(name);
    }
    return found;
  }

  CommandResult train(int ranks, int min_ranks, const std::vector<Kill>& kills, std::vector<std::string> more = {}) {
    fs::remove(trace_);
    fs::remove(progress_);
    std::vector<std::string> command{"bash",
                                     "-c",
                                     "exec \"$@\" 2>" + progress_,
                                     "train",
                                     bin("sim-run"),
                                     "--backend",
                                     "gloo",
                                     "--ranks",
                                     std::to_string(ranks),
                                     "--progress",
                                     "on",
                                     "--trace",
                                     trace_,
                                     "--set",
                                     "elastic.logical_ranks=8",
                                     "--set",
                                     "elastic.min_ranks=" + std::to_string(min_ranks)};
    command.insert(command.end(), more.begin(), more.end());
    command.push_back(source("tests/programs/experiments/elastic_mlp.yaml"));
    auto running = std::async(std::launch::async, [&] { return run_command(command); });
    const auto is_over = [&] { return running.wait_for(milliseconds(0)) == std::future_status::ready; };
    while (!is_over() && content_of(progress_).find("loss") == std::string::npos)
      std::this_thread::sleep_for(milliseconds(5));
    const auto processes = rank_processes();
    for (const auto& kill : kills) {
      if (running.wait_for(kill.after) == std::future_status::ready) break;
      if (processes.contains(kill.rank)) ::kill(processes.at(kill.rank), kill.signal);
    }
    auto result = running.get();
    result.error = content_of(progress_);
    return result;
  }

  // Those with which the ranks have ended that are left.
  [[nodiscard]] std::vector<std::string> parameters() const {
    std::vector<std::string> hashes;
    for (const auto& [key, line] : read_trace(trace_)) {
      if (std::get<3>(key) == "end") hashes.push_back(line["parameters_sha256"]);
    }
    return hashes;
  }

  std::string undisturbed() {
    const auto result = run_command({bin("sim-run"), "--ranks", "1", "--quiet", "--trace", trace_, "--set",
                                     "elastic.logical_ranks=8",
                                     source("tests/programs/experiments/elastic_mlp.yaml")});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return parameters().at(0);
  }

  TemporaryFolder folder_;
  const std::string trace_ = folder_.path("trace.jsonl"), progress_ = folder_.path("progress");
};

TEST_F(ElasticProcessesTest, TheRanksThatAreLeftEndWithTheParametersOfAnUndisturbedTraining) {
  const auto expected = undisturbed();
  std::mt19937 random(std::random_device{}());
  const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
  for (int count = 0; count < num_cases(3); ++count) {
    const int ranks = 4 + below(5);
    std::vector<int> order(ranks);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<Kill> kills;
    std::string text = std::to_string(ranks) + " ranks";
    for (int index = 0; index < 1 + below(ranks - 1); ++index) {
      // At once, or during the recovery, or later.
      const int limits[] = {1, 60, 1500};
      kills.push_back({order[index], milliseconds(below(limits[below(3)]))});
      text += ", " + std::to_string(order[index]) + " after " + std::to_string(kills.back().after.count()) + " ms";
    }
    SCOPED_TRACE(text);
    const auto result = train(ranks, 1, kills);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    if (HasFailure()) return;
    const auto hashes = parameters();
    EXPECT_GE(hashes.size(), ranks - kills.size());
    EXPECT_THAT(hashes, ::testing::Each(expected)) << result.error;
  }
}

TEST_F(ElasticProcessesTest, BelowMinRanksTheJobEndsAndSaysWhy) {
  const auto result = train(3, 3, {{.rank = 1}});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error, HasSubstr("fewer ranks than min_ranks are left"));
}

// The others wait for it until it has not answered for 10 s; it then ends, if it can.
TEST_F(ElasticProcessesTest, AStoppedRankIsLeftBehind) {
  const auto expected = undisturbed();
  const auto result = train(4, 2, {{.rank = 2, .signal = SIGSTOP}, {.rank = 2, .after = milliseconds(14'000), .signal = SIGCONT}});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(parameters(), AllOf(::testing::SizeIs(3), ::testing::Each(expected)));
}

}  // namespace
}  // namespace accel::testing::elastic_processes_test
