// Tests of the launcher on one machine, with real processes: what the user sees of a rank that fails, that all
// others are ended and waited for, and what happens to the output. A launcher that leaves processes behind would
// block ports and memory until someone finds them.
#include "backends/launch/local_launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>

#include "reference/core/errors.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::launcher {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr int kRanks = 3;

// Keeps what the launcher prints during its lifetime: it writes to the descriptor, not to std::cout or std::cerr.
class Captured {
 public:
  explicit Captured(int descriptor)
      : descriptor_(descriptor), before_(dup(descriptor)), file_(std::tmpfile(), &std::fclose) {
    dup2(fileno(file_.get()), descriptor_);
  }
  ~Captured() {
    dup2(before_, descriptor_);
    close(before_);
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  [[nodiscard]] std::string text() const {
    std::string text(1 << 20, '\0');
    const auto count = pread(fileno(file_.get()), text.data(), text.size(), 0);
    text.resize(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    return text;
  }
  [[nodiscard]] std::vector<std::string> lines() const {
    std::vector<std::string> lines;
    std::istringstream in(text());
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

 private:
  int descriptor_, before_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file_;
};

class LocalLaunchTest : public ::testing::Test {
 protected:
  LocalLaunchResult launch(const std::string& mode, LocalLaunchOptions options = {}) {
    options.command = {accel::testing::bin("faulty_program"), mode, folder_.path()};
    options.num_processes = kRanks;
    return launch_local(options);
  }
  // Every process that left its number in the folder must have ended and been waited for.
  void expect_no_process_left() {
    const auto processes = folder_.files();
    EXPECT_EQ(processes.size(), kRanks);
    for (const auto& process : processes) {
      EXPECT_EQ(kill(static_cast<pid_t>(std::stol(process)), 0), -1) << "process " << process << " is left";
      EXPECT_EQ(errno, ESRCH);
    }
  }

  accel::testing::TemporaryFolder folder_;
  Captured output_{STDOUT_FILENO};
  Captured error_{STDERR_FILENO};
};

// The normal case; the lines of the ranks come in any order.
TEST_F(LocalLaunchTest, EveryRankRunsAndItsOutputIsPrefixedWithItsNumber) {
  const auto result = launch("ok");
  EXPECT_EQ(result.exit_code, 0) << error_.text();
  EXPECT_EQ(result.failed_rank, -1);
  EXPECT_THAT(result.message, IsEmpty());
  EXPECT_GT(result.peak_rss_bytes, kRanks * (20L << 20));
  EXPECT_THAT(output_.lines(),
              ::testing::UnorderedElementsAre("[rank 0] rank 0 of 3 has 20 sums", "[rank 1] rank 1 of 3 has 20 sums",
                                              "[rank 2] rank 2 of 3 has 20 sums"));
  expect_no_process_left();
}

// For programs whose output other programs read.
TEST_F(LocalLaunchTest, OutputWithoutPrefixIsUnchanged) {
  launch("ok", {.prefix_output = false});
  EXPECT_THAT(output_.lines(), Each(StartsWith("rank ")));
}

// The other ranks are blocked in a collective and would never end.
TEST_F(LocalLaunchTest, AnExceptionOnOneRankEndsAllAndIsReported) {
  const auto result = launch("throw");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.failed_rank, 1) << error_.text();
  EXPECT_THAT(result.message, AllOf(HasSubstr("rank 1 ended with exit code 1"), HasSubstr("the ink has run out")));
  EXPECT_THAT(error_.text(), HasSubstr("[rank 1] error: the ink has run out"));
  expect_no_process_left();
}

// Exit code 2 means wrong usage, so that scripts do not restart such a job.
TEST_F(LocalLaunchTest, ConfigErrorOfOneRankIsExitCodeTwo) {
  const auto result = launch("throw_config");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.failed_rank, 1) << error_.text();
  EXPECT_THAT(result.message, HasSubstr("ink: expected black, got 'none'"));
  expect_no_process_left();
}

// Scripts use exit codes of their own.
TEST_F(LocalLaunchTest, ExitCodeOfTheProgramIsKept) {
  const auto result = launch("code");
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_EQ(result.failed_rank, 1);
  EXPECT_THAT(result.message, HasSubstr("rank 1 ended with exit code 3"));
  expect_no_process_left();
}

// The other ranks fail soon after, with closed connections. The report must name the cause, not a consequence.
TEST_F(LocalLaunchTest, AKilledRankEndsAllAndIsTheOneNamed) {
  const auto result = launch("die");
  EXPECT_EQ(result.exit_code, 128 + SIGKILL);
  EXPECT_EQ(result.failed_rank, 1) << error_.text();
  EXPECT_THAT(result.message, HasSubstr("rank 1 was killed by signal 9"));
  EXPECT_THAT(output_.text(), Not(HasSubstr("sums")));
  expect_no_process_left();
}

TEST_F(LocalLaunchTest, ASkippedCollectiveIsDiagnosed) {
  const auto result = launch("skip", {.environment = {{"ACCEL_TIMEOUT_SECONDS", "30"}}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.message, AllOf(HasSubstr("all_reduce"), HasSubstr("rank 1")));
  EXPECT_THAT(output_.text(), Not(HasSubstr("sums")));
  expect_no_process_left();
}

// Without a timeout, a single hanging rank would block the machine until a person notices it.
TEST_F(LocalLaunchTest, AHangingRankEndsInTheTimeoutOfTheGroup) {
  const auto result = launch("hang", {.environment = {{"ACCEL_TIMEOUT_SECONDS", "3"}}});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.message, AllOf(HasSubstr("all_reduce"), HasSubstr("missing: rank 1 is running")));
  EXPECT_THAT(result.message, AnyOf(HasSubstr("imed out"), HasSubstr("imeout")));
  expect_no_process_left();
}

TEST_F(LocalLaunchTest, RanksThatRecordNothingEndInTheTimeoutOfTheGroup) {
  const auto result = launch("skip", {.environment = {{"ACCEL_TIMEOUT_SECONDS", "3"}, {"ACCEL_RECORD", "off"}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_GE(result.failed_rank, 0);
  EXPECT_THAT(error_.text(), AllOf(HasSubstr("all_reduce"), AnyOf(HasSubstr("imed out"), HasSubstr("imeout"))));
  EXPECT_THAT(output_.text(), Not(HasSubstr("sums")));
  expect_no_process_left();
}

TEST_F(LocalLaunchTest, ARankThatIgnoresSigtermIsKilled) {
  // Rank 1 fails once all ranks ignore SIGTERM.
  const std::string script =
      "trap '' TERM; echo > $FOLDER/$$; "
      "if [ $RANK = 1 ]; then while [ $(ls $FOLDER | wc -l) -lt 3 ]; do sleep 0.02; done; exit 5; fi; "
      "while :; do sleep 0.1; done";
  const auto result = launch_local(
      {.command = {"/bin/sh", "-c", script}, .num_processes = kRanks, .environment = {{"FOLDER", folder_.path()}}});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.failed_rank, 1);
  expect_no_process_left();
}

// The daemon holds the output of the rank open, so waiting for the end of the output would take 30 seconds.
TEST_F(LocalLaunchTest, ADaemonStartedByARankIsNotWaitedFor) {
  const auto begun = std::chrono::steady_clock::now();
  const std::string script =
      "setsid sh -c \"touch $FOLDER/$RANK; sleep 30\" & until [ -e $FOLDER/$RANK ]; do sleep 0.01; done; echo $RANK "
      "ends";
  const auto result = launch_local(
      {.command = {"/bin/sh", "-c", script}, .num_processes = 2, .environment = {{"FOLDER", folder_.path()}}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(output_.lines(), ::testing::UnorderedElementsAre("[rank 0] 0 ends", "[rank 1] 1 ends"));
  EXPECT_GT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(1))
      << "the daemons hold the output open, and may still say something";
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(20));
}

// The names are torchrun's, so that existing programs find them.
TEST_F(LocalLaunchTest, ProcessesSeeTheVariablesOfTheirRank) {
  const auto result =
      launch_local({.command = {"/bin/sh", "-c",
                                "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR $MASTER_PORT $INK"},
                    .num_processes = 2,
                    .environment = {{"INK", "black"}}});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(output_.lines(),
              ::testing::UnorderedElementsAre(::testing::MatchesRegex(R"(\[rank 0\] 0/2 0/2 127.0.0.1 [0-9]+ black)"),
                                              ::testing::MatchesRegex(R"(\[rank 1\] 1/2 1/2 127.0.0.1 [0-9]+ black)")));
}

// Often it is the reason of a failure.
TEST_F(LocalLaunchTest, ALastLineWithoutALineEndIsNotLost) {
  const auto result = launch_local({.command = {"/bin/sh", "-c", "printf out; printf reason >&2; exit 3"}});
  EXPECT_THAT(output_.lines(), ::testing::ElementsAre("[rank 0] out"));
  EXPECT_THAT(result.message, ::testing::EndsWith("exit code 3: reason"));
}

// Each line is written in two parts, so ranks that share a pipe would mix them.
TEST_F(LocalLaunchTest, LinesOfTwoRanksDoNotMix) {
  const auto result = launch_local(
      {.command = {"/bin/sh", "-c",
                   "i=0; while [ $i -lt 200 ]; do printf '%s' \"$RANK\"; printf '%s\\n' \"$RANK\"; i=$((i+1)); done"},
       .num_processes = kRanks});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(output_.lines().size(), 200U * kRanks);
  EXPECT_THAT(output_.lines(), Each(AnyOf("[rank 0] 00", "[rank 1] 11", "[rank 2] 22")));
}

// Reported once, not by every rank.
TEST_F(LocalLaunchTest, ProgramThatDoesNotExistIsAConfigError) {
  try {
    launch_local({.command = {"./no-such-program"}, .num_processes = 2});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("no-such-program"), HasSubstr("No such file")));
  }
}

// Before anything is started.
TEST_F(LocalLaunchTest, NoProgramOrAnImpossibleNumberOfProcessesIsAConfigError) {
  EXPECT_THROW(launch_local({.command = {}}), ConfigError);
  EXPECT_THROW(launch_local({.command = {"true"}, .num_processes = 0}), ConfigError);
  EXPECT_THROW(launch_local({.command = {"true"}, .num_processes = 5000}), ConfigError);
}

// Found before the ranks start, where each of them would report it differently.
TEST_F(LocalLaunchTest, BusyPortIsAConfigErrorThatNamesIt) {
  const accel::testing::BusyPort busy;
  const int port = busy.port();
  try {
    launch_local({.command = {"true"}, .master_port = port});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("port " + std::to_string(port) + " is in use"));
  }
}

// Ports have 16 bits.
TEST_F(LocalLaunchTest, PortThatIsNoPortIsAConfigError) {
  EXPECT_THROW(launch_local({.command = {"true"}, .master_port = 70000}), ConfigError);
}

// free_port() must return a port that is not only free but also allowed.
TEST_F(LocalLaunchTest, FreePortCanBeListenedOn) {
  EXPECT_EQ(launch_local({.command = {"true"}, .master_port = free_port()}).exit_code, 0);
}

}  // namespace
}  // namespace accel::launcher
