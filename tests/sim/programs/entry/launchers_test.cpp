// accel::launch from within a program, namely this test. What is launched runs in new processes of this binary, or
// on threads of this process. Functions are therefore registered before main() and found by name.
#include "reference/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accel.hpp>
#include <cstdlib>
#include <fstream>

#include "reference/config/environment.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Leaves a file named for the rank, with what the rank sees of its surroundings.
int leave_a_file(const std::vector<std::string>& arguments) {
  const auto& rank = current_rank();
  std::ofstream(arguments.at(0) + "/" + std::to_string(rank.rank) + "of" + std::to_string(rank.world_size))
      << rank.backend << " " << environment("ACCELERATE_MIXED_PRECISION").value_or("unset");
  rank.world.barrier();
  return 0;
}
const Launchable kLeave("leave_a_file", leave_a_file);

int fail_on_rank_1(const std::vector<std::string>& arguments) {
  if (arguments.at(0) == "config") throw ConfigError("ink: expected black, got 'none'");
  // Fails in the first attempt only, unless it is asked to fail always.
  const bool is_first = environment("TORCHELASTIC_RESTART_COUNT").value_or("0") == "0";
  if (current_rank().rank == 1 && (is_first || arguments.at(0) == "always")) throw Error("the ink has run out");
  current_rank().world.barrier();
  return 0;
}
const Launchable kFail("fail_on_rank_1", fail_on_rank_1);

// A rank that launches ranks itself, which must be an error.
int launch_again(const std::vector<std::string>& arguments) {
  try {
    launch("leave_a_file", arguments, 2);
    return 1;
  } catch (const StateError&) {
    current_rank().world.barrier();  // rank 0 serves the store and must not exit while others connect
    return 0;
  }
}
const Launchable kAgain("launch_again", launch_again);

template <typename E>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  }
  return "no such error";
}

// C++ functions cannot be sent to another process, so they are registered by name and the program starts itself
// again.
TEST(LaunchersTest, TheFunctionRunsOnProcessesAndSimulatedRanks) {
  const TemporaryFolder real, simulated, debug;
  launch("leave_a_file", {real.path()}, {.num_processes = 3, .mixed_precision = "bf16", .use_cpu = true});
  EXPECT_THAT(real.files(), ElementsAre("0of3", "1of3", "2of3"));
  std::string text;
  std::getline(std::ifstream(real.path("2of3")), text);
  EXPECT_EQ(text, "gloo bf16");
  notebook_launcher("leave_a_file", {simulated.path()}, {.num_processes = 5, .simulate = true});
  EXPECT_EQ(simulated.files().size(), 5U);
  std::getline(std::ifstream(simulated.path("4of5")), text);
  EXPECT_EQ(text, "sim unset");
  debug_launcher("leave_a_file", {debug.path()});
  EXPECT_THAT(debug.files(), ElementsAre("0of2", "1of2"));
}

// The exception happens in another process, so only its text can be passed on.
TEST(LaunchersTest, AFailureIsReportedWithItsRankAndMessage) {
  for (const bool simulate : {false, true}) {
    const auto run = [&](const std::string& how) {
      return [=] { launch("fail_on_rank_1", {how}, {.num_processes = 3, .use_cpu = true, .simulate = simulate}); };
    };
    EXPECT_THAT(error_of<Error>(run("always")), AllOf(HasSubstr("rank 1"), HasSubstr("the ink has run out")));
  }
  EXPECT_THAT(error_of<ConfigError>([] { debug_launcher("fail_on_rank_1", {"config"}); }),
              HasSubstr("ink: expected black"));
}

// The function fails in its first attempt only.
TEST(LaunchersTest, ALaunchMayRestart) {
  EXPECT_THAT(error_of<Error>([] { launch("fail_on_rank_1", {"once"}, {.num_processes = 2, .use_cpu = true}); }),
              HasSubstr("rank 1"));
  launch("fail_on_rank_1", {"once"}, {.num_processes = 2, .max_restarts = 1, .use_cpu = true});
}

// A nested launch would start ranks of ranks, as a script without `if __name__ == "__main__"` does in Python.
TEST(LaunchersTest, ALaunchInsideARankIsAStateError) {
  const TemporaryFolder folder;
  launch("launch_again", {folder.path()}, {.num_processes = 2, .use_cpu = true});
  launch("launch_again", {folder.path()}, {.num_processes = 2, .simulate = true});
  EXPECT_TRUE(folder.files().empty());
}

// The name is a string, so the compiler cannot find a mistake in it.
TEST(LaunchersTest, InvalidNamesAndOptionsAreConfigErrors) {
  EXPECT_THAT(error_of<ConfigError>([] { launch("leave_a_fil", {}, 2); }),
              HasSubstr("no function is registered as 'leave_a_fil'; did you mean 'leave_a_file'?"));
  EXPECT_THAT(error_of<ConfigError>([] { const Launchable twice("leave_a_file", leave_a_file); }),
              HasSubstr("two functions are registered as 'leave_a_file'"));
  EXPECT_THAT(error_of<ConfigError>([] { launch("leave_a_file", {}, {.mixed_precision = "fp4"}); }),
              HasSubstr("expected no, fp16, bf16, fp8, got 'fp4'"));
  EXPECT_THAT(error_of<ConfigError>([] { launch("leave_a_file", {}, {.num_processes = 0}); }),
              HasSubstr("num_processes 0"));
  EXPECT_THAT(error_of<ConfigError>([] { launch("leave_a_file", {}, {.num_processes = 2, .num_nodes = 2}); }),
              HasSubstr("2 machines, but no use_port"));
  EXPECT_THAT(error_of<ConfigError>(
                  [] { launch("leave_a_file", {}, {.num_processes = 2, .max_restarts = 1, .simulate = true}); }),
              HasSubstr("simulated ranks"));
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) {
  // In a launched process this runs the function and does not return.
  accel::run_launched();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
