// Trainings over real Gloo processes, of which some are killed at any moment: the others end with the parameters of an
// undisturbed training.
#include <fmt/ranges.h>
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

#include "tests/programs/support/network.hpp"
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
    EXPECT_EQ(processes.size(), ranks) << content_of(progress_);
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
                                     "elastic.logical_ranks=8", source("tests/programs/experiments/elastic_mlp.yaml")});
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
  const auto result =
      train(4, 2, {{.rank = 2, .signal = SIGSTOP}, {.rank = 2, .after = milliseconds(14'000), .signal = SIGCONT}});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(parameters(), AllOf(::testing::SizeIs(3), ::testing::Each(expected)));
}

// On one host or two; ranks kill themselves after the milliseconds of the plan.
class ElasticHostsTest : public ::testing::Test {
 protected:
  struct Result {
    std::vector<int> exit_codes;  // of the hosts
    std::string error;
    std::map<int, std::string> sums;  // by rank: of parameters, losses and evaluations
    int num_replayed = 0;             // steps, by ranks that have joined
    double longest_step = 0;          // in seconds, with a recovery
  };

  Result train(int hosts, int ranks, int min_ranks, const std::map<int, int>& kills, int max_restarts = 0) {
    const TemporaryFolder folder;
    std::optional<Network> network;
    if (hosts > 1) network.emplace(hosts);
    std::vector<std::future<CommandResult>> running;
    for (int host = 0; host < hosts; ++host) {
      std::vector<std::string> command{bin("accel"),
                                       "launch",
                                       "--cpu",
                                       "--num_processes",
                                       std::to_string(ranks),
                                       "--max_restarts",
                                       std::to_string(max_restarts)};
      if (hosts > 1) {
        command.insert(command.end(), {"--num_machines", std::to_string(hosts), "--machine_rank", std::to_string(host),
                                       "--main_process_ip", Network::address(0), "--main_process_port", "29500"});
      }
      command.insert(command.end(), {bin("elastic_training"), folder.path(""), std::to_string(min_ranks)});
      for (const auto& [rank, after] : kills) command.push_back(fmt::format("{}:{}", rank, after));
      running.push_back(std::async(std::launch::async, [=, &network] {
        return network ? network->run_on(host, command) : run_command(command);
      }));
    }
    Result result;
    for (auto& one : running) {
      const auto ended = one.get();
      result.exit_codes.push_back(ended.exit_code);
      result.error += ended.error;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      std::istringstream words(content_of(folder.path("rank" + std::to_string(rank))));
      std::string sum, losses, seen;
      double longest = 0;
      int num_changes = 0, num_replayed = 0;
      if (!(words >> sum >> losses >> seen >> longest >> num_changes >> num_replayed)) continue;
      result.sums[rank] = fmt::format("{} {} {}", sum, losses, seen);
      result.longest_step = std::max(result.longest_step, longest);
      result.num_replayed += num_replayed;
    }
    return result;
  }

  // With restarts all ranks complete the training: those that are started anew join the others.
  void expect_undisturbed(int hosts, int num_cases, int max_restarts = 0) {
    const auto expected = train(1, 1, 1, {}).sums.at(0);
    std::mt19937 random(std::random_device{}());
    const auto below = [&](int limit) { return static_cast<int>(random() % static_cast<unsigned>(limit)); };
    for (int count = 0; count < num_cases; ++count) {
      const int ranks = 4 + 2 * below(3);
      std::vector<int> order(ranks);
      std::iota(order.begin(), order.end(), 0);
      std::shuffle(order.begin(), order.end(), random);
      std::map<int, int> kills;
      // On two hosts the ranks that are left must be a majority, or know that the others have ended.
      for (int index = 0; index < 1 + below(hosts > 1 ? ranks / 2 - 1 : ranks - 1); ++index)
        kills[order[index]] = below(600);
      SCOPED_TRACE(fmt::format("{} ranks on {} hosts, kills {}", ranks, hosts, fmt::join(kills, ", ")));
      const auto result = train(hosts, ranks, 1, kills, max_restarts);
      EXPECT_THAT(result.exit_codes, ::testing::Each(0)) << result.error;
      EXPECT_GE(result.sums.size(), ranks - (max_restarts > 0 ? 0 : kills.size())) << result.error;
      if (max_restarts > 0) EXPECT_GT(result.num_replayed, 0) << result.error;
      for (const auto& [rank, sum] : result.sums) EXPECT_EQ(sum, expected) << "rank " << rank;
      std::cout << fmt::format("{} ranks, {} killed: longest step {:.2f} s\n", ranks, kills.size(),
                               result.longest_step);
      if (HasFailure()) return;
    }
  }
};

TEST_F(ElasticHostsTest, AFailureAfterTheTrainingEndsTheJob) {
  const TemporaryFolder folder;
  const auto result = run_command({bin("accel"), "launch", "--cpu", "--num_processes", "4", bin("elastic_training"),
                                   folder.path(""), "1", "2:100", "fails"});
  EXPECT_EQ(result.exit_code, 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr("after the training"));
}

TEST_F(ElasticHostsTest, ARankThatJoinsWithAnotherModelEndsAndSaysWhy) {
  const TemporaryFolder folder;
  const auto result = run_command({bin("accel"), "launch", "--cpu", "--num_processes", "4", "--max_restarts", "1",
                                   bin("elastic_training"), folder.path(""), "1", "2:100", "other"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("starting it anew (1 of at most 1)"));
  EXPECT_THAT(result.error, HasSubstr("elastic: models 0 of the rank that joins"));
  for (const int rank : {0, 1, 3}) EXPECT_NE(content_of(folder.path("rank" + std::to_string(rank))), "");
  EXPECT_EQ(content_of(folder.path("rank2")), "");
}

TEST_F(ElasticHostsTest, OneHost) { expect_undisturbed(1, num_cases(3)); }

TEST_F(ElasticHostsTest, TwoHosts) {
  if (const auto reason = Network::why_not(); !reason.empty())
    GTEST_SKIP() << "no network namespaces on this machine: " << reason;
  expect_undisturbed(2, num_cases(2));
}

TEST_F(ElasticHostsTest, RanksThatAreStartedAnewJoin) { expect_undisturbed(1, num_cases(3), /*max_restarts=*/8); }

TEST_F(ElasticHostsTest, RanksThatAreStartedAnewJoinThoseOfAnotherHost) {
  if (const auto reason = Network::why_not(); !reason.empty())
    GTEST_SKIP() << "no network namespaces on this machine: " << reason;
  expect_undisturbed(2, num_cases(2), /*max_restarts=*/8);
}

// The launcher of a host whose ranks are all lost waits for the others, and succeeds with them.
TEST_F(ElasticHostsTest, AHostThatLosesAllItsRanks) {
  if (const auto reason = Network::why_not(); !reason.empty())
    GTEST_SKIP() << "no network namespaces on this machine: " << reason;
  const auto expected = train(1, 1, 1, {}).sums.at(0);
  const auto result = train(3, 6, 1, {{2, 100}, {3, 100}});
  EXPECT_THAT(result.exit_codes, ::testing::Each(0)) << result.error;
  EXPECT_EQ(result.sums.size(), 4);
  for (const auto& [rank, sum] : result.sums) EXPECT_EQ(sum, expected) << "rank " << rank;
}

}  // namespace
}  // namespace accel::testing::elastic_processes_test
