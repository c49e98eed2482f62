// Memory of programs that train: the tensors of a step lie where those of the step before lay.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::memory_pools_test {
namespace {

// Page faults of sim-run and of the rank that it starts: a language model whose tensors have up to 1 MiB.
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

TEST(MemoryPoolsTest, StepsTakeNoNewMemory) {
  const auto few = page_faults(10), many = page_faults(30);
  EXPECT_LT(many - few, 2000) << few << " page faults in 10 steps, " << many << " in 30";
}

}  // namespace
}  // namespace accel::testing::memory_pools_test
