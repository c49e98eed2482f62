// Jobs of several machines, each a launcher on a thread here, with shells as ranks.
#include "backends/launch/job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <future>
#include <memory>
#include <optional>

#include "backends/launch/ports.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"

namespace accel::launcher {
namespace {

using accel::testing::expect_property;
using accel::testing::expect_property_fails;
using accel::testing::pick;

// Which rank fails in an attempt, and how; none: all end well.
struct Failing {
  int rank = -1, code = 0;
};

// A job, and what its ranks do in each attempt; behind the last one they end well.
struct Story {
  int num_machines = 1, per_machine = 1, max_restarts = 0;
  std::vector<Failing> attempts;
};

Story any_story() {
  Story story{.num_machines = pick(1, 4), .per_machine = pick(1, 4), .max_restarts = pick(0, 3), .attempts = {}};
  for (int attempt = pick(0, 4); attempt > 0; --attempt) {
    const bool fails = pick(0, 4) > 0;
    story.attempts.push_back(fails ? Failing{pick(0, story.num_machines * story.per_machine), pick(1, 100)}
                                   : Failing{});
  }
  return story;
}

// What every machine is to see.
struct Ending {
  int rank = -1, code = 0, restarts = 0;
  bool operator==(const Ending&) const = default;
};

Ending ending_of(const Story& story, int max_restarts) {
  for (int attempt = 0; attempt < static_cast<int>(story.attempts.size()); ++attempt) {
    const auto& failing = story.attempts[attempt];
    if (failing.code == 0) return {-1, 0, attempt};
    if (attempt == max_restarts) return {failing.rank, failing.code, attempt};
  }
  return {-1, 0, static_cast<int>(story.attempts.size())};
}

// Each rank looks up "ATTEMPT:RANK:CODE" for itself.
std::string script_of(const Story& story) {
  std::string cases;
  for (std::size_t attempt = 0; attempt < story.attempts.size(); ++attempt) {
    if (story.attempts[attempt].code != 0)
      cases += fmt::format("{}:{}) exit {};; ", attempt, story.attempts[attempt].rank, story.attempts[attempt].code);
  }
  return "case $TORCHELASTIC_RESTART_COUNT:$RANK in " + cases + "*) exit 0;; esac";
}

std::vector<Ending> endings_seen(const Story& story) {
  const int port = free_port();
  std::vector<std::future<JobResult>> machines;
  for (int machine = 0; machine < story.num_machines; ++machine) {
    const JobOptions options{.command = {"/bin/sh", "-c", script_of(story)},
                             .machines = {.num_machines = story.num_machines,
                                          .machine_rank = machine,
                                          .num_processes = story.num_machines * story.per_machine,
                                          .main_port = port,
                                          .max_restarts = story.max_restarts,
                                          .join_timeout = std::chrono::seconds(20)},
                             .monitor_interval = std::chrono::milliseconds(5),
                             .prints_restarts = false};
    machines.push_back(std::async(std::launch::async, [options] { return run_job(options); }));
  }
  std::vector<Ending> endings;
  for (auto& machine : machines) {
    const auto result = machine.get();
    endings.push_back({result.failure.rank, result.failure.exit_code, result.restarts});
  }
  return endings;
}

void expect_endings(int restarts_of_model) {
  const auto story = any_story();
  const auto expected = ending_of(story, story.max_restarts + restarts_of_model);
  for (const auto& ending : endings_seen(story)) {
    RC_LOG() << story.num_machines << " machines of " << story.per_machine << ", " << script_of(story) << ", restarts "
             << story.max_restarts << ": rank " << ending.rank << " code " << ending.code << " after "
             << ending.restarts;
    RC_ASSERT(ending == expected);
  }
}

TEST(JobLaws, EveryMachineSeesTheSameAttemptsAndTheSameEnding) {
  expect_property(40, [] { expect_endings(0); });
  expect_property_fails("a restart more than was asked for", 40, [] { expect_endings(1); });
}

TEST(JobTest, NumbersThatDoNotFitAreConfigErrors) {
  EXPECT_THROW(processes_per_machine({.num_machines = 2, .num_processes = 3}), ConfigError);
  EXPECT_THROW(processes_per_machine({.num_machines = 2, .machine_rank = 2, .num_processes = 4}), ConfigError);
  EXPECT_THROW(processes_per_machine({.num_machines = 0, .num_processes = 4}), ConfigError);
  EXPECT_EQ(processes_per_machine({.num_machines = 2, .num_processes = 6}), 3);
}

// Machine 0 of two, and what the launcher of machine 1 would be: a connection that says what it is told.
class MainMachineTest : public ::testing::Test {
 protected:
  void begin(int max_restarts) {
    other_.reset();
    machines_.reset();
    machines_ = std::make_unique<Machines>(
        MachinesOptions{.num_machines = 2, .num_processes = 2, .main_port = port_, .max_restarts = max_restarts});
    other_ = joined();
    machines_->join();
    while (!machines_->attempt()) advance();
  }
  [[nodiscard]] Link joined() const {
    auto link = Link::connect_to("127.0.0.1", port_);
    link.send("join 1 2 2");
    return link;
  }
  void advance() {
    other_->receive();  // sends what is left, too
    machines_->advance();
  }
  // Within ten seconds, or one of exit code -1.
  Verdict verdict() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!machines_->verdict() && std::chrono::steady_clock::now() < until) advance();
    return machines_->verdict().value_or(Verdict{.failure = {-1, -1, "none"}});
  }

  int port_ = free_port();
  std::unique_ptr<Machines> machines_;
  std::optional<Link> other_;  // closed first
};

// Messages keep their order, so the first of this attempt is the first that counts.
TEST_F(MainMachineTest, WhatIsSaidOfAnotherAttemptIsIgnored) {
  begin(/*max_restarts=*/0);
  machines_->report_done();
  for (const auto* late : {"failed 7 1 1 3 late", "done 7", "failed -1 0 1 4 early"}) other_->send(late);
  other_->send("failed 0 1 1 5 now");
  EXPECT_EQ(verdict().failure.exit_code, 5);
  EXPECT_EQ(verdict().failure.message, "now");
}

TEST_F(MainMachineTest, AFailureIsTriedAgainUnlessItIsFinal) {
  for (const bool is_final : {false, true}) {
    begin(/*max_restarts=*/3);
    other_->send(is_final ? "failed 0 1 -1 2 no program" : "failed 0 0 1 9 killed");
    EXPECT_EQ(verdict().restarts, !is_final);
  }
}

TEST_F(MainMachineTest, ALauncherThatComesAnewEndsTheAttempt) {
  begin(/*max_restarts=*/1);
  const auto gone = std::exchange(other_, joined());  // without a sign: its connection stays
  const auto ending = verdict();
  EXPECT_EQ(ending.failure.message, "machine 1 joined again");
  EXPECT_TRUE(ending.restarts);
}

TEST(JobTest, WhoIsInterruptedBeforeMachineZeroAnswersEndsAtOnce) {
  Machines machines({.num_machines = 2, .machine_rank = 1, .num_processes = 2, .main_port = free_port()});
  machines.join();
  machines.advance();
  machines.report_failure({-1, 130, "interrupted"}, /*is_final=*/true);
  ASSERT_TRUE(machines.verdict());
  EXPECT_FALSE(machines.verdict()->restarts);
  EXPECT_EQ(machines.verdict()->failure.exit_code, 130);
}

// A machine that starts may get its name later: the launchers of the others go on asking.
TEST(JobTest, AHostWithoutANameIsALinkThatIsLost) {
  const auto link = Link::connect_to("machine-0.invalid", 29500);
  EXPECT_TRUE(link.is_lost());
}

TEST(JobTest, AMachineWhoseLauncherIsGoneEndsTheOthers) {
  const int port = free_port();
  auto other = std::async(std::launch::async, [&] {
    Machines machines({.num_machines = 2, .machine_rank = 1, .num_processes = 2, .main_port = port});
    machines.join();
    while (!machines.attempt()) machines.advance();
  });  // leaves without a word
  const auto result = run_job(
      {.command = {"/bin/sleep", "100"}, .machines = {.num_machines = 2, .num_processes = 2, .main_port = port}});
  other.get();
  EXPECT_EQ(result.failure.exit_code, 1);
  EXPECT_EQ(result.failure.message, "the launcher of machine 1 has closed its connection");
}

}  // namespace
}  // namespace accel::launcher
