// The NCCL lane on simulated GPUs (tests/support/fake_cuda): placement, order, counts, errors and exit codes. Kernels
// do nothing there, so that no test asserts a loss; collectives and copies move their bytes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::cuda_lane_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

using Lines = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

std::string all_of(const CommandResult& run) { return run.output + run.error; }

class CudaLaneTest : public ::testing::Test {
 protected:
  /// Runs a command on `num_gpus` simulated GPUs.
  CommandResult run(const Lines& command, int num_gpus = 2, const Variables& more = {}) {
    Variables environment{{"LD_PRELOAD", bin("fake_cuda/libfake_cuda.so")},
                          {"LD_LIBRARY_PATH", bin("fake_cuda")},
                          {"FAKE_CUDA_DEVICES", std::to_string(num_gpus)},
                          {"FAKE_CUDA_LOG", folder_.path()},
                          {"TORCH_CUDNN_V8_API_DISABLED", "1"},
                          {"ACCEL_TIMEOUT_SECONDS", "20"}};
    for (const auto& [name, value] : more) environment[name] = value;
    return run_command(command, {.environment = environment, .limit = std::chrono::seconds(100)});
  }
  /// Runs a mode of gpu_program under `accel launch`, one rank per GPU.
  CommandResult launch(const std::string& mode, int num_ranks = 2, const Variables& more = {},
                       const std::string& argument = "") {
    return run({bin("accel"), "launch", "--multi_gpu", "--num_processes", std::to_string(num_ranks), bin("gpu_program"),
                mode, argument},
               num_ranks, more);
  }
  /// Runs a mode and expects exit code 0 and one line of each rank.
  void expect_ranks_print(const std::string& mode, const Lines& lines, const std::string& argument = "") {
    const auto done = launch(mode, static_cast<int>(lines.size()), {}, argument);
    ASSERT_EQ(done.exit_code, 0) << mode << ": " << all_of(done);
    for (std::size_t rank = 0; rank < lines.size(); ++rank)
      EXPECT_THAT(done.output, HasSubstr("rank " + std::to_string(rank) + ": " + lines[rank])) << mode;
  }
  /// What the ranks called: the lines of the log of one rank that contain `text`.
  [[nodiscard]] Lines calls(int rank, const std::string& text) const {
    std::ifstream log(folder_.path(std::to_string(rank) + ".log"));
    Lines lines;
    for (std::string line; std::getline(log, line);) {
      if (line.find(text) != std::string::npos) lines.push_back(line);
    }
    return lines;
  }

  TemporaryFolder folder_;
};

// --- groups ---------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, ARankUsesTheGpuOfItsLocalRank) {
  const auto done = launch("reduce", 4);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_THAT(done.output,
                HasSubstr("rank " + std::to_string(rank) + ": sum 10.000000 of 12 on cuda:" + std::to_string(rank)));
    EXPECT_THAT(calls(rank, "nccl init"), Each(HasSubstr("on device " + std::to_string(rank))));
    EXPECT_THAT(calls(rank, "another device"), IsEmpty());
  }
}

// NCCL has no CPU tensors; sharded training, fp16's flags and an offloaded optimizer exchange some.
class ShardedOnGpusTest : public CudaLaneTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ShardedOnGpusTest,
                         ::testing::Values("sharded", "shard_grad_op", "no_shard", "hybrid_shard", "offloaded", "zero1",
                                           "zero2", "zero3"),
                         [](const auto& mode) { return std::string(mode.param); });
TEST_P(ShardedOnGpusTest, PreparesAndSteps) {
  const auto done = launch(GetParam());
  EXPECT_EQ(done.exit_code, 0) << all_of(done);
  for (const int rank : {0, 1}) EXPECT_THAT(calls(rank, "disagree"), IsEmpty());
}

TEST_F(CudaLaneTest, ObjectsAndTriggersDoNotWaitForTheGpu) {
  const auto done = launch("objects");
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  for (const auto* rank : {"rank 0", "rank 1"})
    EXPECT_THAT(done.output, HasSubstr(std::string(rank) + ": of 0; of 1; waits 0"));
}

TEST_F(CudaLaneTest, TransfersCarryTheirBytes) { expect_ranks_print("send", {"got 1", "got 0"}); }

TEST_F(CudaLaneTest, AGroupOfSomeRanksUsesTheirGpus) {
  const auto done = launch("even_group", 4);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("rank 0: even sum 4"), HasSubstr("rank 2: even sum 4")));
  EXPECT_THAT(calls(2, "nccl init of rank 1 of 2 on device 2"), SizeIs(1));
}

// The time-out of the options is that of every group, not of the world alone.
TEST_F(CudaLaneTest, ALaterGroupHasTheTimeoutOfTheOptions) {
  const auto done = launch("even_group", 4, {{"FAKE_CUDA_FAULTS", "hang_collective=1@2"}});
  EXPECT_THAT(done.exit_code, ::testing::AnyOf(1, 3));  // 3: the others have waited longest, in another group
  EXPECT_THAT(done.error, HasSubstr("Timeout(ms)=5000")) << all_of(done);
}

TEST_F(CudaLaneTest, WhatNcclLacksIsAnErrorBeforeTheCall) {
  const auto done = launch("unsupported");
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  for (const auto* rank : {"rank 0: ", "rank 1: "}) {
    EXPECT_THAT(done.output, HasSubstr(std::string(rank) + "all_reduce: NCCL has no bitwise reductions"));
    EXPECT_THAT(done.output, HasSubstr(std::string(rank) + "all_reduce: Gloo and NCCL do not reduce int16"));
    EXPECT_THAT(done.output, HasSubstr(std::string(rank) + "send: got tag 3, but NCCL"));
  }
}

// --- the record of calls --------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, CallsThatDifferAreNamedBeforeBytesMove) {
  const auto done = launch("disagree");
  EXPECT_EQ(done.exit_code, 3) << all_of(done);
  EXPECT_THAT(done.error, AllOf(HasSubstr("of group world: the ranks' calls differ"),
                                HasSubstr("rank 0: all_reduce(sum, float32 [1])"),
                                HasSubstr("rank 1: all_reduce(sum, float32 [2])"), HasSubstr("gpu_program.cpp:"),
                                Not(HasSubstr("SIGABRT"))));
  EXPECT_THAT(calls(0, "disagree"), IsEmpty());
}

TEST_F(CudaLaneTest, ATensorOnTheCpuIsAnotherCall) {
  const auto done = launch("on_the_cpu");
  EXPECT_EQ(done.exit_code, 3) << all_of(done);
  EXPECT_THAT(done.error, AllOf(HasSubstr("rank 0: all_reduce(sum, float32 [4]) on a GPU"),
                                HasSubstr("rank 1: all_reduce(sum, float32 [4]) on the CPU")));
}

// The host of rank 0 does not wait, or waits for its GPU, which nobody sees.
TEST_F(CudaLaneTest, ARankThatHasEndedWhileAGpuWaitsForItIsNamed) {
  const auto done = launch("leave");
  EXPECT_EQ(done.exit_code, 3) << all_of(done);
  EXPECT_THAT(done.error,
              AllOf(HasSubstr("hang: "), HasSubstr("missing: rank 1 has ended its program, before any collective")));
}

TEST_F(CudaLaneTest, ALateRankIsSuspectedAndLives) {
  const auto done = run({bin("accel"), "launch", "--multi_gpu", "--num_processes", "2", "--hang-seconds", "1.5",
                         bin("gpu_program"), "late"});
  EXPECT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.error,
              AllOf(HasSubstr("rank 0 has waited for"), HasSubstr("rank 1 is running"), HasSubstr("it sleeps")));
}

// --- data -----------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, MetricsHaveEverySampleOnce) {
  expect_ranks_print("metrics", {"every sample once", "every sample once"});
}

TEST_F(CudaLaneTest, DispatchedBatchesReachTheirRanks) { expect_ranks_print("dispatch", {"0 4", "2 6"}); }

TEST_F(CudaLaneTest, GeneratorsOfGpusAreSynchronized) { expect_ranks_print("synchronize", {"seed 1", "seed 1"}); }

// --- state ----------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, StateIsSavedAndLoaded) {
  expect_ranks_print("save_and_load",
                     {"same weights, same generator on cuda:0", "same weights, same generator on cuda:1"},
                     folder_.path("state"));
}

// Ranks that the saved run did not have must not draw the numbers of rank 0.
TEST_F(CudaLaneTest, NewRanksGetGeneratorsOfTheirOwn) {
  const auto saved = run({bin("gpu_program"), "generators", folder_.path("state")}, /*num_gpus=*/1);
  ASSERT_EQ(saved.exit_code, 0) << all_of(saved);
  const auto done = launch("generators", 2, {}, folder_.path("state"));
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  const auto seed_of = [&](const std::string& rank) {
    const auto begin = done.output.find(rank + ": seed ");
    return done.output.substr(begin + rank.size(), done.output.find('\n', begin) - begin - rank.size());
  };
  EXPECT_NE(seed_of("rank 0"), seed_of("rank 1")) << done.output;
}

// --- memory ---------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, ABatchSizeThatFitsIsFound) {
  const auto done = launch("find_batch_size", 2, {{"FAKE_CUDA_MEGABYTES", "1500"}});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("rank 0: fits 1024 MB"), HasSubstr("rank 1: fits 1024 MB")));
}

TEST_F(CudaLaneTest, OutOfMemoryIsAnError) {
  const auto done = launch("out_of_memory", 2, {{"FAKE_CUDA_MEGABYTES", "1500"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, HasSubstr("CUDA out of memory"));
}

TEST_F(CudaLaneTest, AnAllocationThatFailsIsAnError) {
  const auto done = launch("train", 2, {{"FAKE_CUDA_FAULTS", "fail_allocation=1@0"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, HasSubstr("CUDA out of memory"));
}

TEST_F(CudaLaneTest, FreedMemoryReturnsToTheGpu) { expect_ranks_print("free", {"freed", "freed"}); }

// --- the end of a process -------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, ANormalEndLeavesItsGroupsWithoutAborting) {
  const auto done = launch("train");
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  for (const int rank : {0, 1}) {
    EXPECT_THAT(calls(rank, "nccl abort"), IsEmpty());
    EXPECT_THAT(calls(rank, "nccl destroy"), Not(IsEmpty()));
  }
}

// The watchdogs of PyTorch must end before CUDA is unloaded, or the process ends by SIGABRT.
TEST_F(CudaLaneTest, AnExceptionEndsWithItsMessageAndCode) {
  const auto done = launch("throw");
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, AllOf(HasSubstr("planted: rank 1 gives up"), HasSubstr("rank 1 ended with exit code 1"),
                                Not(HasSubstr("SIGABRT"))));
}

TEST_F(CudaLaneTest, AConfigErrorEndsWithCode2) {
  const auto done = launch("config_error");
  EXPECT_EQ(done.exit_code, 2) << all_of(done);
  EXPECT_THAT(done.error, HasSubstr("planted: wrong settings"));
}

TEST_F(CudaLaneTest, ExitKeepsItsCode) {
  const auto done = launch("exit");
  EXPECT_THAT(done.error, HasSubstr("rank 1 ended with exit code 7")) << all_of(done);
}

// --- errors of collectives ------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, ALateCollectiveEndsWithRankAndOperation) {
  const auto done = launch("train", 2, {{"FAKE_CUDA_FAULTS", "hang_collective=4@1"}, {"ACCEL_TIMEOUT_SECONDS", "5"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error,
              AllOf(HasSubstr("error: rank "), HasSubstr("OpType="), HasSubstr("timeout"), Not(HasSubstr("SIGABRT"))));
}

TEST_F(CudaLaneTest, AnErrorOfNcclEndsWithTheRank) {
  const auto done = launch("train", 2, {{"FAKE_CUDA_FAULTS", "fail_collective=4@1"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, AllOf(HasSubstr("error: rank "), HasSubstr("NCCL"), Not(HasSubstr("SIGABRT"))));
}

TEST_F(CudaLaneTest, ARankThatDiesInACollectiveEndsTheJob) {
  const auto done = launch("train", 2, {{"FAKE_CUDA_FAULTS", "die_in_collective=4@1"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, HasSubstr("rank 1 was killed by signal 9"));
}

TEST_F(CudaLaneTest, AnErrorInPrepareEndsTheJob) {
  const auto done = launch("train", 2, {{"FAKE_CUDA_FAULTS", "fail_collective=1@0"}});
  EXPECT_EQ(done.exit_code, 1);
  EXPECT_THAT(done.error, AllOf(HasSubstr("error: rank "), Not(HasSubstr("SIGABRT"))));
}

// --- launchers ------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, OneProcessUsesTheFirstGpuWithoutGroups) {
  const auto done = run({bin("gpu_program"), "reduce"});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, HasSubstr("rank 0: sum 1.000000 of 3 on cuda:0"));
  EXPECT_THAT(calls(0, "nccl"), IsEmpty());
}

TEST_F(CudaLaneTest, TheCpuCanBeChosen) {
  const auto done = run({bin("accel"), "launch", "--cpu", "--num_processes", "2", bin("gpu_program"), "reduce"});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, HasSubstr("rank 1: sum 3.000000 of 6 on cpu"));
}

TEST_F(CudaLaneTest, OneRankPerGpuIsTheDefault) {
  const auto done = run({bin("accel"), "launch", bin("gpu_program"), "reduce"}, /*num_gpus=*/3);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, HasSubstr("rank 2: sum 6.000000 of 9 on cuda:2"));
}

// Other launchers set these variables themselves.
TEST_F(CudaLaneTest, RanksStartedByTheirEnvironmentUseTheGpuOfTheirLocalRank) {
  const std::string variables =
      "WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(20000 + getpid() % 20000) +
      " ";
  const auto start = [&](const std::string& rank) {
    return variables + "RANK=" + rank + " LOCAL_RANK=" + rank + " " + bin("gpu_program") + " reduce & rank" + rank +
           "=$!; ";
  };
  const auto done = run({"bash", "-c", start("0") + start("1") + "wait $rank0; code=$?; wait $rank1 && exit $code"});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("rank 0: sum 3.000000 of 6 on cuda:0"),
                                 HasSubstr("rank 1: sum 3.000000 of 6 on cuda:1")));
}

// Each machine has its own GPUs; the number of a rank's GPU is not that of the rank.
TEST_F(CudaLaneTest, RanksOfTwoMachinesUseTheirOwnGpus) {
  const auto machine = [&](const std::string& rank) {
    return bin("accel") + " launch --multi_gpu --num_processes 4 --num_machines 2 --machine_rank " + rank +
           " --main_process_ip 127.0.0.1 --main_process_port " + std::to_string(20001 + getpid() % 20000) + " " +
           bin("gpu_program") + " reduce & machine" + rank + "=$!; ";
  };
  const auto done =
      run({"bash", "-c", machine("0") + machine("1") + "wait $machine0; code=$?; wait $machine1 && exit $code"});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("rank 1: sum 10.000000 of 12 on cuda:1"),
                                 HasSubstr("rank 2: sum 10.000000 of 12 on cuda:0"),
                                 HasSubstr("rank 3: sum 10.000000 of 12 on cuda:1")));
  EXPECT_THAT(calls(3, "nccl init of rank 3 of 4 on device 1"), SizeIs(1));
}

class ExperimentsOnGpusTest : public CudaLaneTest, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, ExperimentsOnGpusTest, ::testing::Values("char_gpt", "fashion_mnist", "cifar_like"),
                         [](const auto& experiment) { return std::string(experiment.param); });
TEST_P(ExperimentsOnGpusTest, TrainOverNccl) {
  const auto done = run({bin("sim-run"), "--quiet", "--backend", "nccl", "--ranks", "2", "--max-steps", "4",
                         source("configs/train/" + std::string(GetParam()) + ".yaml")});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, HasSubstr(R"("backend":"nccl","steps":4)"));
}

// A replay is one launch, after those that copy the inputs. Capturing fails if the host waits inside the step.
TEST_F(CudaLaneTest, AStepIsReplayedAsACudaGraph) {
  const auto done = run({bin("gpu_program"), "replay"}, /*num_gpus=*/1);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("launches 1 waits 0 sees 3,"), HasSubstr("launches 1 waits 0 sees 4,")));
}

// Kernels do nothing here, so all ranks have equal, constant weights; collectives are those of the simulator.
TEST_F(CudaLaneTest, SimulatedRanksShareAGpu) {
  const auto done = run({bin("sim-run"), "--quiet", "--device", "cuda", "--ranks", "8", "--max-steps", "4",
                         source("configs/train/fashion_mnist.yaml")},
                        /*num_gpus=*/1);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, HasSubstr(R"("ranks":8,"backend":"sim","steps":4)"));
  EXPECT_THAT(calls(0, "nccl"), IsEmpty());
}

TEST_F(CudaLaneTest, SimulatedRanksHaveGeneratorsOfTheirOwn) {
  const auto done = run({bin("sim-run"), "--device", "cuda", "--ranks", "3", "--", bin("gpu_program"), "draw"},
                        /*num_gpus=*/1);
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  for (int rank = 0; rank < 3; ++rank)
    EXPECT_THAT(done.output, HasSubstr("rank " + std::to_string(rank) + ": seed " + std::to_string(100 + rank) +
                                       " offset " + std::to_string(4 * (rank + 1))));
}

TEST_F(CudaLaneTest, SimulatedRanksOnGpusNeedAGpu) {
  const auto done = run({bin("sim-run"), "--device", "cuda", source("configs/train/fashion_mnist.yaml")},
                        /*num_gpus=*/0);
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.error, HasSubstr("--device cuda: this build has no CUDA, or CUDA sees no GPU"));
}

// --- settings -------------------------------------------------------------------------------------------------------

TEST_F(CudaLaneTest, MoreRanksThanGpusAreRefused) {
  const auto done = run({bin("accel"), "launch", "--multi_gpu", "--num_processes", "4", bin("gpu_program"), "train"});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.error, HasSubstr("4 ranks on this machine, but CUDA finds 2 GPUs"));
}

TEST_F(CudaLaneTest, RanksOverGlooShareAGpu) {
  const auto done = run({bin("accel"), "launch", "--multi_gpu", "--num_processes", "2", bin("gpu_program"), "reduce"},
                        /*num_gpus=*/1, {{"ACCEL_BACKEND", "gloo"}});
  ASSERT_EQ(done.exit_code, 0) << all_of(done);
  EXPECT_THAT(done.output, AllOf(HasSubstr("rank 0: sum 3.000000 of 6 on cuda:0"),
                                 HasSubstr("rank 1: sum 3.000000 of 6 on cuda:0")));
}

TEST_F(CudaLaneTest, MultiGpuWithoutGpusIsRefused) {
  const auto done = run({bin("accel"), "launch", "--multi_gpu", "--num_processes", "2", bin("gpu_program"), "train"},
                        /*num_gpus=*/0);
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.error, HasSubstr("CUDA finds no GPU"));
}

TEST_F(CudaLaneTest, NcclOnTheCpuIsRefused) {
  const auto done = run({bin("accel"), "launch", "--cpu", "--num_processes", "2", bin("gpu_program"), "train"}, 2,
                        {{"ACCEL_BACKEND", "nccl"}});
  EXPECT_EQ(done.exit_code, 2);
  EXPECT_THAT(done.error, HasSubstr("ACCEL_BACKEND is nccl, but ACCELERATE_USE_CPU asks for the CPU"));
}

// --- the cost of a step ---------------------------------------------------------------------------------------------

// The host must not wait in a step, except for fp16's decision whether to skip it, and for offloaded gradients.
TEST_F(CudaLaneTest, ASteadyStepWaitsAsOftenAsTheTableSays) {
  const std::map<std::string, std::string> steps{
      {"train", "step: waits 0, pageable copies 0"},        {"bf16", "step: waits 0, pageable copies 0"},
      {"accumulate", "step: waits 0, pageable copies 0"},   {"fp16", "step: waits 1, pageable copies 0"},
      {"sharded", "step: waits 0, pageable copies 0"},      {"shard_grad_op", "step: waits 0, pageable copies 0"},
      {"hybrid_shard", "step: waits 0, pageable copies 0"}, {"offloaded", "step: waits 1, pageable copies 0"},
      {"zero2", "step: waits 0, pageable copies 0"},        {"zero3", "step: waits 0, pageable copies 0"},
      {"cnn", "step: waits 0, pageable copies 0"},          {"gpt", "step: waits 0, pageable copies 0"},
      {"batch_norm", "step: waits 0, pageable copies 0"}};
  for (const auto& [mode, expected] : steps) {
    const auto done = launch(mode);
    ASSERT_EQ(done.exit_code, 0) << mode << ": " << all_of(done);
    for (const auto* rank : {"rank 0: ", "rank 1: "}) EXPECT_THAT(done.output, HasSubstr(rank + expected)) << mode;
  }
}

}  // namespace
}  // namespace accel::testing::cuda_lane_test
