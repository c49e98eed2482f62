// Tests of the logger: which rank logs, in which order, and at which level.
#include "reference/tracking/logging.hpp"

#include <gmock/gmock.h>

#include <regex>

#include "reference/state/rank_context.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::logging {
namespace {

using testing::Backend;
using testing::CleanEnvironment;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using testing::message_of;
using testing::run_ranks;
using ::testing::UnorderedElementsAre;

// The lines that `call` logs, without their times.
template <typename F>
std::vector<std::string> lines_of(F&& call) {
  ::testing::internal::CaptureStderr();
  call();
  std::istringstream text(::testing::internal::GetCapturedStderr());
  static const std::regex time(R"(^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - )");
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(std::regex_replace(line, time, ""));
  return lines;
}

// With 1,000 ranks, 1,000 equal lines would be useless.
TEST(LoggingTest, OnlyTheMainProcessLogsByDefault) {
  const CleanEnvironment clean({"ACCELERATE_"});
  const auto logger = get_logger("train", {.log_level = "INFO"});
  EXPECT_THAT(lines_of([&] { run_ranks(Backend::kSim, 3, [&](RankContext&) { logger.info("loss {:.1f}", 0.25); }); }),
              ElementsAre("info - train - [RANK 0] loss 0.2"));
  EXPECT_THAT(lines_of([&] {
                run_ranks(Backend::kSim, 3,
                          [&](RankContext&) { logger.error("100% {}", {.main_process_only = false}); });
              }),
              UnorderedElementsAre("error - train - [RANK 0] 100% {}", "error - train - [RANK 1] 100% {}",
                                   "error - train - [RANK 2] 100% {}"));
}

// The lines of two rounds must come in the order of the ranks within each round.
TEST(LoggingTest, InOrderRanksTakeTurnsOnEveryBackend) {
  const CleanEnvironment clean({"ACCELERATE_"});
  const auto logger = get_logger("t", {.log_level = "debug"});
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto lines = lines_of([&] {
      run_ranks(backend, 4, [&](RankContext& rank) {
        for (int round = 0; round < 2; ++round) logger.debug(std::to_string(round * 4 + rank.rank), {.in_order = true});
      });
    });
    ASSERT_EQ(lines.size(), 8U);
    for (int line = 0; line < 8; ++line)
      EXPECT_EQ(lines[line], fmt::format("debug - t - [RANK {}] {}", line % 4, line));
  }
}

// In-order logging waits for the other ranks. A disabled debug line must not slow down or block a training.
TEST(LoggingTest, ADisabledLevelLogsNothingAndWaitsForNoRank) {
  const CleanEnvironment clean({"ACCELERATE_"});
  const auto logger = get_logger("t");
  EXPECT_FALSE(logger.is_enabled_for(Level::kInfo));
  EXPECT_TRUE(logger.is_enabled_for(Level::kWarning));
  EXPECT_THAT(lines_of([&] {
                run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
                  if (rank.rank == 0) logger.info("alone", {.in_order = true});
                });
              }),
              IsEmpty());
}

// Names in any case are accepted, as in Python; unknown ones are errors.
TEST(LoggingTest, TheEnvironmentSetsTheLevelUnlessAnArgumentDoes) {
  CleanEnvironment environment({"ACCELERATE_"});
  environment.set({{"ACCELERATE_LOG_LEVEL", "Error"}});
  EXPECT_FALSE(get_logger("t").is_enabled_for(Level::kWarning));
  EXPECT_TRUE(get_logger("t").is_enabled_for(Level::kError));
  EXPECT_TRUE(get_logger("t", {.log_level = "DEBUG"}).is_enabled_for(Level::kDebug));
  environment.set({{"ACCELERATE_LOG_LEVEL", "loud"}});
  EXPECT_THAT(message_of<ConfigError>([] { (void)get_logger("t"); }),
              HasSubstr("log level 'loud' is unknown; expected debug, info, warning, error or critical"));
}

// Copies of a logger share the memory of what was logged.
TEST(LoggingTest, WarnOnceLogsEachTextOnceOnEachRank) {
  const CleanEnvironment clean({"ACCELERATE_"});
  const auto logger = get_logger("t");
  const auto lines = lines_of([&] {
    run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
      const auto copy = logger;
      for (int time = 0; time < 3; ++time) copy.warning_once("a", {.main_process_only = false});
      logger.warning_once("a", {.main_process_only = false});
      logger.warning_once("b");
    });
  });
  EXPECT_THAT(lines,
              UnorderedElementsAre("warning - t - [RANK 0] a", "warning - t - [RANK 1] a", "warning - t - [RANK 0] b"));
}

// A thread of the program has no rank, so the logger cannot know whether to log; the error says what to pass.
TEST(LoggingTest, AThreadThatRunsNoRankNeedsAContext) {
  const CleanEnvironment clean({"ACCELERATE_"});
  EXPECT_THAT(message_of<StateError>([] { get_logger("t").warning("x"); }),
              HasSubstr("this thread does not run a rank"));
  const auto context = make_single_rank();
  context->rank = 0;
  EXPECT_THAT(lines_of([&] { get_logger("t", {.context = context.get()}).warning("x"); }),
              ElementsAre("warning - t - [RANK 0] x"));
}

}  // namespace
}  // namespace accel::logging
