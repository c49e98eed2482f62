// Mistakes of distributed programs on two hosts, with two real Gloo processes each: the diagnosis is that of the same
// program on simulated ranks. Skipped where the machine does not allow namespaces.
#include <gmock/gmock.h>

#include <future>

#include "tests/programs/hangs/hangs_fixture.hpp"
#include "tests/programs/support/network.hpp"

namespace accel::testing::hangs {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TwoHostsTest : public HangsTest {
 protected:
  void SetUp() override {
    if (const auto reason = Network::why_not(); !reason.empty())
      GTEST_SKIP() << "no network namespaces on this machine: " << reason;
  }

  // By accel launch on both hosts; the diagnosis is that of the first.
  [[nodiscard]] Ended launch_on_two_hosts(const std::string& mistake, const Words& options = {}) const {
    const Network network(2);
    const auto file = folder_.path("hosts.json");
    std::vector<std::future<CommandResult>> running;
    for (int host = 0; host < 2; ++host) {
      Words command{bin("accel"),
                    "launch",
                    "--cpu",
                    "--num_processes",
                    "4",
                    "--num_machines",
                    "2",
                    "--machine_rank",
                    std::to_string(host),
                    "--main_process_ip",
                    Network::address(0),
                    "--main_process_port",
                    "29500"};
      command.insert(command.end(), options.begin(), options.end());
      if (host == 0) command.insert(command.end(), {"--diagnosis", file});
      command.insert(command.end(), {bin("hanging_program"), mistake});
      running.push_back(std::async(std::launch::async, [=, &network] { return network.run_on(host, command); }));
    }
    Ended run{.result = running[0].get()};
    EXPECT_EQ(running[1].get().exit_code, run.result.exit_code);
    std::ifstream(file) >> run.diagnosis;
    return run;
  }
};

INSTANTIATE_TEST_SUITE_P(Mistakes, TwoHostsTest,
                         ::testing::Values("dtype", "reduction", "library_scale", "checkpoint_name", "missing_sum",
                                           "early_return", "loop_lengths", "barrier_of_main", "group_order",
                                           "cycle_of_receives", "receive_and_barrier"),
                         [](const auto& info) { return info.param; });

TEST_P(TwoHostsTest, RanksOfTwoHostsGetTheDiagnosisOfSimulatedOnes) {
  const auto simulated = run_on("sim", GetParam());
  const auto real = launch_on_two_hosts(GetParam());
  EXPECT_EQ(real.result.exit_code, 3) << real.result.error;
  EXPECT_EQ(real.diagnosis, simulated.diagnosis) << real.result.error;
  EXPECT_THAT(real.result.error,
              AllOf(HasSubstr(real.diagnosis["text"].get<std::string>()), Not(HasSubstr("frame #"))));
}

class UnlaunchedHostsTest : public TwoHostsTest {};
INSTANTIATE_TEST_SUITE_P(Mistakes, UnlaunchedHostsTest,
                         ::testing::Values("reduction", "early_return", "loop_lengths", "cycle_of_receives"),
                         [](const auto& info) { return info.param; });

TEST_P(UnlaunchedHostsTest, HostsOfAnotherLauncherToo) {
  const auto simulated = run_on("sim", GetParam());
  const Network network(2);
  std::vector<std::future<CommandResult>> running;
  for (int host = 0; host < 2; ++host) {
    const Words command{"bash", "-c", script_of_ranks(2 * host, 2), bin("hanging_program"), GetParam()};
    running.push_back(std::async(std::launch::async, [=, &network] {
      return network.run_on(host, command,
                            {.environment = {{"WORLD_SIZE", "4"},
                                             {"LOCAL_WORLD_SIZE", "2"},
                                             {"MASTER_ADDR", Network::address(0)},
                                             {"MASTER_PORT", "29500"},
                                             {"ACCELERATE_USE_CPU", "true"}}});
    }));
  }
  const auto first = running[0].get(), second = running[1].get();
  for (const auto& run : {first, second}) {
    EXPECT_THAT(run.output, HasSubstr("ended 3\n")) << run.error;
    EXPECT_EQ(count_of(simulated.diagnosis["text"], run.error), 1) << run.error;
  }
}

class TwoOtherHostsTest : public TwoHostsTest {};

TEST_F(TwoOtherHostsTest, TheOtherHostSaysWhoHasFailed) {
  const auto real = launch_on_two_hosts("exception");
  EXPECT_EQ(real.result.exit_code, 1);
  EXPECT_THAT(real.result.error,
              AllOf(HasSubstr("rank 3 has failed: the disk of rank 3 is full"), Not(HasSubstr("frame #"))));
}

TEST_F(TwoOtherHostsTest, ARightProgramEndsWithoutADiagnosis) {
  const auto real = launch_on_two_hosts("none");
  EXPECT_EQ(real.result.exit_code, 0) << real.result.error;
  EXPECT_EQ(real.diagnosis["kind"], "none");
}

TEST_F(TwoOtherHostsTest, ASlowRankIsReportedAndTheJobLives) {
  const auto real = launch_on_two_hosts("slow", {"--hang-seconds", "1"});
  EXPECT_EQ(real.result.exit_code, 0) << real.result.error;
  EXPECT_THAT(real.result.error, HasSubstr("ranks 0-2 have waited for "));
  EXPECT_THAT(real.result.error, HasSubstr("; it sleeps"));
}

}  // namespace
}  // namespace accel::testing::hangs
