// Memory of training programs: the tensors of a step reuse the addresses of the previous step.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::memory_pools_test {
namespace {

// Returns the page faults of sim-run and the rank that it starts, for a language model with tensors of up to 1 MiB.
std::int64_t page_faults(int steps) {
  const auto faults_of_children = [] {
    rusage usage{};
    getrusage(RUSAGE_CHILDREN, &usage);
    return usage.ru_minflt;
  };
  const auto before = faults_of_children();
  const auto run =
      run_command({bin("sim-run"), "--quiet", "--backend", "gloo", "--ranks", "1", "--max-steps", std::to_string(steps),
                   "--set", "model.width=128", "--set", "model.block_size=64", "--set", "batch_size=8", "--set",
                   "limit=400", source("tests/programs/experiments/gpt_adamw_accumulation.yaml")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  return faults_of_children() - before;
}

TEST(MemoryPoolsTest, StepsNeedNoNewMemory) {
  const auto few = page_faults(10), many = page_faults(30);
  // Without pooling each step would fault in its tensors again, more than 10,000 pages over 20 steps.
  EXPECT_LT(many - few, 2000) << few << " page faults in 10 steps, " << many << " in 30";
}

}  // namespace
}  // namespace accel::testing::memory_pools_test
