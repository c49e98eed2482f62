// bench/gpu/run_all, as far as a machine without a GPU can run it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::gpu_day_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CommandResult run_all(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), source("bench/gpu/run_all"));
  return run_command(arguments, {.limit = std::chrono::seconds(120)});
}

std::string build_folder() { return std::filesystem::path(bin("accel")).parent_path().parent_path(); }

TEST(GpuDayTest, EveryStepLeavesItsOutputAndItsExitCode) {
  const TemporaryFolder folder;
  const auto done = run_all({build_folder(), folder.path("day"), "--cpu", "--steps", "environment|speed_mlp"});
  ASSERT_EQ(done.exit_code, 0) << done.output << done.error;
  const auto text_of = [&](const std::string& file) {
    std::ifstream in(folder.path("day/" + file));
    return std::string(std::istreambuf_iterator(in), {});
  };
  EXPECT_THAT(text_of("steps.tsv"), AllOf(HasSubstr("environment\t0\t"), HasSubstr("speed_mlp_accel\t0\t")));
  EXPECT_THAT(text_of("throughput.tsv"), AllOf(HasSubstr("mlp\taccel\t{"), HasSubstr("\"steps_per_second\":")));
  EXPECT_THAT(text_of("environment.txt"), HasSubstr("Platform"));
}

TEST(GpuDayTest, WrongArgumentsAreUsageErrors) {
  const TemporaryFolder folder;
  EXPECT_EQ(run_all({build_folder()}).exit_code, 2);
  const auto no_build = run_all({folder.path(), folder.path("day"), "--cpu"});
  EXPECT_EQ(no_build.exit_code, 2);
  EXPECT_THAT(no_build.error, HasSubstr("experiment_bench does not exist"));
  const auto unknown = run_all({build_folder(), folder.path("day"), "--fast"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.error, HasSubstr("unknown option '--fast'"));
}

}  // namespace
}  // namespace accel::testing::gpu_day_test
