// Tests of jobs on several machines. Each machine is a launcher on a thread of the test, and its ranks are shells.
// All machines must agree on how often the job is restarted and how it ends, whichever rank fails.
#include "backends/launch/job.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <sys/resource.h>

#include <future>
#include <memory>
#include <optional>

#include "backends/launch/ports.hpp"
#include "backends/launch/secret.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"

namespace accel::launcher {
namespace {

using accel::testing::expect_property;
using accel::testing::expect_property_fails;
using accel::testing::pick;

// Which rank fails in an attempt, and with which code; rank -1: all ranks succeed.
struct Failing {
  int rank = -1, code = 0;
};

// A job, and what its ranks do in each attempt; in later attempts they all succeed.
struct Story {
  int num_machines = 1, per_machine = 1, max_restarts = 0;
  std::vector<Failing> attempts;
};

// Up to three machines and three attempts, most of which fail.
Story any_story() {
  Story story{.num_machines = pick(1, 4), .per_machine = pick(1, 4), .max_restarts = pick(0, 3), .attempts = {}};
  for (int attempt = pick(0, 4); attempt > 0; --attempt) {
    const bool fails = pick(0, 4) > 0;
    story.attempts.push_back(fails ? Failing{pick(0, story.num_machines * story.per_machine), pick(1, 100)}
                                   : Failing{});
  }
  return story;
}

// What every machine must see.
struct Ending {
  int rank = -1, code = 0, restarts = 0;
  bool operator==(const Ending&) const = default;
};

// The model: what the rules say about this story.
Ending ending_of(const Story& story, int max_restarts) {
  for (int attempt = 0; attempt < static_cast<int>(story.attempts.size()); ++attempt) {
    const auto& failing = story.attempts[attempt];
    if (failing.code == 0) return {-1, 0, attempt};
    if (attempt == max_restarts) return {failing.rank, failing.code, attempt};
  }
  return {-1, 0, static_cast<int>(story.attempts.size())};
}

// A shell script in which each rank looks up "ATTEMPT:RANK:CODE".
std::string script_of(const Story& story) {
  std::string cases;
  for (std::size_t attempt = 0; attempt < story.attempts.size(); ++attempt) {
    if (story.attempts[attempt].code != 0)
      cases += fmt::format("{}:{}) exit {};; ", attempt, story.attempts[attempt].rank, story.attempts[attempt].code);
  }
  return "case $TORCHELASTIC_RESTART_COUNT:$RANK in " + cases + "*) exit 0;; esac";
}

// What the launchers of all machines report.
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

// Compares what the launchers report with the model.
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

// The model must be able to fail: one that allows one restart too many has to be refuted.
TEST(JobLaws, EveryMachineSeesTheSameAttemptsAndTheSameEnd) {
  expect_property(40, [] { expect_endings(0); });
  expect_property_fails("a restart more than was asked for", 40, [] { expect_endings(1); });
}

// Three processes on two machines, a machine beyond the last, and no machines.
TEST(JobTest, NumbersThatDoNotMatchAreConfigErrors) {
  EXPECT_THROW(processes_per_machine({.num_machines = 2, .num_processes = 3}), ConfigError);
  EXPECT_THROW(processes_per_machine({.num_machines = 2, .machine_rank = 2, .num_processes = 4}), ConfigError);
  EXPECT_THROW(processes_per_machine({.num_machines = 0, .num_processes = 4}), ConfigError);
  EXPECT_EQ(processes_per_machine({.num_machines = 2, .num_processes = 6}), 3);
}

// The main machine of two, with a plain connection in place of the launcher of machine 1. The test sends the
// messages of machine 1 itself and so controls their order.
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
  [[nodiscard]] LauncherLink joined() const {
    auto link = LauncherLink::connect_to("127.0.0.1", port_);
    const auto nonce = next_line(link).substr(std::string("challenge ").size());
    link.send("join 1 2 2 0 " + proof_of("", nonce + " join 1 2 2 0"));
    return link;
  }
  [[nodiscard]] std::string next_line(LauncherLink& link) const {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::chrono::steady_clock::now() < until) {
      machines_->advance();
      if (const auto lines = link.receive(); !lines.empty()) return lines.front();
    }
    return "";
  }
  // What machine 0 answers to a line, which it must not act on.
  [[nodiscard]] std::string answer_to(const std::string& line) const {
    auto link = LauncherLink::connect_to("127.0.0.1", port_);
    next_line(link);
    link.send(line);
    return next_line(link);
  }
  void advance() {
    other_->receive();  // also sends what is left to send
    machines_->advance();
  }
  // Waits for at most ten seconds; an exit code of -1 means that there was no outcome.
  JobOutcome outcome() {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!machines_->outcome() && std::chrono::steady_clock::now() < until) advance();
    return machines_->outcome().value_or(JobOutcome{.failure = {-1, -1, "none"}});
  }

  int port_ = free_port();
  std::unique_ptr<Machines> machines_;
  std::optional<LauncherLink> other_;  // declared last, so it is closed first
};

// Messages arrive in order, so the first one that belongs to this attempt decides.
TEST_F(MainMachineTest, MessagesAboutOtherAttemptsAreIgnored) {
  begin(/*max_restarts=*/0);
  machines_->report_done();
  for (const auto* late : {"failed 7 1 1 3 late", "done 7", "failed -1 0 1 4 early"}) other_->send(late);
  other_->send("failed 0 1 1 5 now");
  EXPECT_EQ(outcome().failure.exit_code, 5);
  EXPECT_EQ(outcome().failure.message, "now");
}

// A program that cannot be started will not start in the next attempt either.
TEST_F(MainMachineTest, AFailureIsRetriedUnlessItIsFinal) {
  for (const bool is_final : {false, true}) {
    begin(/*max_restarts=*/3);
    other_->send(is_final ? "failed 0 1 -1 2 no program" : "failed 0 0 1 9 killed");
    EXPECT_EQ(outcome().restarts, !is_final);
  }
}

// A machine was restarted, so its ranks are gone, while its old connection may look alive for a long time.
TEST_F(MainMachineTest, ALauncherThatJoinsAgainEndsTheAttempt) {
  begin(/*max_restarts=*/1);
  const auto gone = std::exchange(other_, joined());  // its connection stays open
  const auto ending = outcome();
  EXPECT_EQ(ending.failure.message, "machine 1 joined again");
  EXPECT_TRUE(ending.restarts);
}

// A line alone proves nothing, whatever its numbers are.
TEST_F(MainMachineTest, ALineOfAStrangerNeitherEndsTheJobNorTakesAPlace) {
  begin(/*max_restarts=*/0);
  for (const auto* line :
       {"join 1 2 2 X", "join 1 2 2", "join 1 9 9 0 0", "join -1 2 2 0 0", "GET / HTTP/1.1", "alive"})
    EXPECT_EQ(answer_to(line), "refused");
  EXPECT_FALSE(machines_->outcome());
  other_->send("failed 0 1 1 5 now");
  EXPECT_EQ(outcome().failure.message, "now");
}

TEST_F(MainMachineTest, AnEndlessLineClosesItsConnection) {
  begin(/*max_restarts=*/0);
  auto stranger = LauncherLink::connect_to("127.0.0.1", port_);
  next_line(stranger);
  for (int part = 0; part < 1000 && !stranger.is_lost(); ++part) {
    EXPECT_EQ(send(stranger.descriptor(), std::string(1000, 'x').c_str(), 1000, MSG_NOSIGNAL) < 0, stranger.is_lost());
    advance();
    stranger.receive();
  }
  EXPECT_TRUE(stranger.is_lost());
  EXPECT_FALSE(machines_->outcome());
}

// The oldest connections are closed first, so a launcher can still join.
TEST_F(MainMachineTest, ManyIdleConnectionsDoNotKeepAMachineOut) {
  machines_ = std::make_unique<Machines>(MachinesOptions{.num_machines = 2, .num_processes = 2, .main_port = port_});
  std::vector<LauncherLink> idle;
  for (int count = 0; count < 200; ++count) {
    idle.push_back(LauncherLink::connect_to("127.0.0.1", port_));
    machines_->advance();
  }
  std::vector<pollfd> waiting;
  machines_->add_to(waiting);
  EXPECT_LE(waiting.size(), 67U);
  other_ = joined();
  machines_->join();
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!machines_->attempt() && std::chrono::steady_clock::now() < until) advance();
  EXPECT_TRUE(machines_->attempt());
}

// Without a back-off, the launcher would spin: a connection that cannot be accepted keeps the listener readable.
TEST(ListenerTest, WithoutDescriptorsTheListenerPauses) {
  const int port = free_port();
  LauncherListener listener("127.0.0.1", port);
  const auto link = LauncherLink::connect_to("127.0.0.1", port);
  rlimit before{};
  getrlimit(RLIMIT_NOFILE, &before);
  auto none = before;
  none.rlim_cur = 3;
  setrlimit(RLIMIT_NOFILE, &none);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (listener.is_ready() && std::chrono::steady_clock::now() < until) EXPECT_FALSE(listener.accept());
  setrlimit(RLIMIT_NOFILE, &before);
  EXPECT_FALSE(listener.is_ready());
  EXPECT_TRUE(listener.accept());
}

// Only a launcher with the secret joins; the other one ends with the reason, and machine 0 waits on.
TEST(JobTest, AMachineWithAnotherSecretIsRefused) {
  const int port = free_port();
  Machines main({.num_machines = 2, .num_processes = 2, .main_port = port, .secret = "a"});
  main.join();
  for (const std::string secret : {"b", "", "a"}) {
    Machines other({.num_machines = 2, .machine_rank = 1, .num_processes = 2, .main_port = port, .secret = secret});
    other.join();
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!other.outcome() && !other.attempt() && std::chrono::steady_clock::now() < until) {
      main.advance();
      other.advance();
    }
    EXPECT_EQ(other.attempt().has_value(), secret == "a");
    EXPECT_EQ(main.attempt().has_value(), secret == "a");
    if (secret == "a") continue;
    ASSERT_TRUE(other.outcome());
    EXPECT_EQ(other.outcome()->failure.exit_code, 2);
    EXPECT_THAT(other.outcome()->failure.message, ::testing::HasSubstr("ACCEL_LAUNCH_SECRET"));
  }
}

// Test vectors of RFC 4231, cases 2 and 6.
TEST(SecretTest, ProofsAreHmacSha256) {
  EXPECT_EQ(proof_of("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(proof_of(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

// The user presses Ctrl-C while the machine still waits for the main one.
TEST(JobTest, AnInterruptBeforeMachineZeroAnswersEndsAtOnce) {
  Machines machines({.num_machines = 2, .machine_rank = 1, .num_processes = 2, .main_port = free_port()});
  machines.join();
  machines.advance();
  machines.report_failure({-1, 130, "interrupted"}, /*is_final=*/true);
  ASSERT_TRUE(machines.outcome());
  EXPECT_FALSE(machines.outcome()->restarts);
  EXPECT_EQ(machines.outcome()->failure.exit_code, 130);
}

// A machine that starts may get its name later, so the launchers of the others must be able to keep asking.
TEST(JobTest, AnUnknownHostGivesALostLink) {
  const auto link = LauncherLink::connect_to("machine-0.invalid", 29500);
  EXPECT_TRUE(link.is_lost());
}

// Nobody listens at the first address, as on a host whose name also resolves to an unused IPv6 address.
TEST(JobTest, EveryAddressOfAHostIsTried) {
  const int open_port = free_port();
  Machines main(MachinesOptions{.num_machines = 2, .num_processes = 2, .main_port = open_port});
  auto addresses = LauncherLink::addresses_of("127.0.0.1", free_port());
  addresses.push_back(LauncherLink::addresses_of("127.0.0.1", open_port).front());
  ASSERT_EQ(addresses.size(), 2U);
  const auto is_lost = [&](int attempt) {
    auto link = LauncherLink::connect_to_one(addresses, attempt);
    const auto until = std::chrono::steady_clock::now() + std::chrono::milliseconds(200);
    while (!link.is_lost() && std::chrono::steady_clock::now() < until) link.receive();
    return link.is_lost();
  };
  EXPECT_TRUE(is_lost(0));
  EXPECT_FALSE(is_lost(1));
  EXPECT_TRUE(is_lost(2));
}

// The ranks of the other machine sleep for 100 seconds and must be ended before.
TEST(JobTest, AVanishedLauncherEndsTheJobOnTheOtherMachines) {
  const int port = free_port();
  auto other = std::async(std::launch::async, [&] {
    Machines machines({.num_machines = 2, .machine_rank = 1, .num_processes = 2, .main_port = port});
    machines.join();
    while (!machines.attempt()) machines.advance();
  });  // leaves without a message
  const auto result = run_job(
      {.command = {"/bin/sleep", "100"}, .machines = {.num_machines = 2, .num_processes = 2, .main_port = port}});
  other.get();
  EXPECT_EQ(result.failure.exit_code, 1);
  EXPECT_EQ(result.failure.message, "the launcher of machine 1 has closed its connection");
}

}  // namespace
}  // namespace accel::launcher
