// Environment variables of launchers: torchrun, Open MPI, MPICH and SLURM each name ranks differently. A wrong
// reading makes every process rank 0 of 1, and N separate trainings run without an error.
#include "reference/config/environment.hpp"

#include <gmock/gmock.h>

#include <cstdlib>
#include <map>

#include "reference/core/errors.hpp"

using ::testing::HasSubstr;

namespace accel {
namespace {

const std::vector<std::string> kLaunchVariables = {"RANK",
                                                   "WORLD_SIZE",
                                                   "LOCAL_RANK",
                                                   "LOCAL_WORLD_SIZE",
                                                   "MASTER_ADDR",
                                                   "MASTER_PORT",
                                                   "OMPI_COMM_WORLD_RANK",
                                                   "OMPI_COMM_WORLD_SIZE",
                                                   "OMPI_COMM_WORLD_LOCAL_RANK",
                                                   "OMPI_COMM_WORLD_LOCAL_SIZE",
                                                   "PMI_RANK",
                                                   "PMI_SIZE",
                                                   "MPI_LOCALRANKID",
                                                   "MPI_LOCALNRANKS",
                                                   "MV2_COMM_WORLD_RANK",
                                                   "MV2_COMM_WORLD_SIZE",
                                                   "MV2_COMM_WORLD_LOCAL_RANK",
                                                   "MV2_COMM_WORLD_LOCAL_SIZE",
                                                   "SLURM_PROCID",
                                                   "SLURM_NTASKS",
                                                   "SLURM_STEP_NUM_TASKS",
                                                   "SLURM_STEP_TASKS_PER_NODE",
                                                   "SLURM_NODEID",
                                                   "SLURM_LOCALID",
                                                   "SLURM_NTASKS_PER_NODE",
                                                   "ACCEL_TEST_A",
                                                   "ACCEL_TEST_B",
                                                   "ACCELERATE_USE_FSDP",
                                                   "ACCELERATE_USE_DEEPSPEED"};

// Starts without any launch variable, and restores the environment afterwards.
class EnvironmentTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const auto& name : kLaunchVariables) {
      const char* value = std::getenv(name.c_str());
      if (value != nullptr) before_[name] = value;
      unsetenv(name.c_str());
    }
  }
  void TearDown() override {
    for (const auto& name : kLaunchVariables) unsetenv(name.c_str());
    set(before_);
  }
  static void set(const std::map<std::string, std::string>& variables) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  static std::string problems() {
    try {
      read_launch_environment();
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  }
  static void expect_place(int rank, int world_size, int local_rank, int local_world_size) {
    const auto launch = read_launch_environment();
    EXPECT_TRUE(launch.is_launched);
    EXPECT_EQ(launch.rank, rank);
    EXPECT_EQ(launch.world_size, world_size);
    EXPECT_EQ(launch.local_rank, local_rank);
    EXPECT_EQ(launch.local_world_size, local_world_size);
  }

 private:
  std::map<std::string, std::string> before_;
};

// Shell scripts unset a variable by setting it to "".
TEST_F(EnvironmentTest, AnEmptyVariableIsUnset) {
  EXPECT_EQ(environment("ACCEL_TEST_A"), std::nullopt);
  set({{"ACCEL_TEST_A", ""}});
  EXPECT_EQ(environment("ACCEL_TEST_A"), std::nullopt);
  set({{"ACCEL_TEST_A", " x"}});
  EXPECT_EQ(environment("ACCEL_TEST_A"), " x");
}

// accelerate/utils/environment.py, get_int_from_env: -1 means "not set" for some launchers.
TEST_F(EnvironmentTest, TheFirstNonNegativeIntegerIsUsed) {
  EXPECT_EQ(environment_int({"ACCEL_TEST_A", "ACCEL_TEST_B"}), std::nullopt);
  set({{"ACCEL_TEST_A", "-1"}, {"ACCEL_TEST_B", "2"}});
  EXPECT_EQ(environment_int({"ACCEL_TEST_A", "ACCEL_TEST_B"}), 2);
  set({{"ACCEL_TEST_A", "0"}});
  EXPECT_EQ(environment_int({"ACCEL_TEST_A", "ACCEL_TEST_B"}), 0);
}

// Parsing "2x" as 2 would hide a mistake in a script.
TEST_F(EnvironmentTest, ATextThatIsNoIntegerIsAConfigError) {
  for (const auto* text : {"two", "2x", "1.5", "99999999999"}) {
    set({{"ACCEL_TEST_A", text}});
    EXPECT_THROW(environment_int({"ACCEL_TEST_A"}), ConfigError) << text;
  }
}

// The words of Python's str_to_bool.
TEST_F(EnvironmentTest, WordsAreParsedAsFlags) {
  for (const auto* yes : {"1", "True", "t", "YES", "y", "on"}) EXPECT_EQ(flag_of(yes), true) << yes;
  for (const auto* no : {"0", "False", "f", "NO", "n", "off"}) EXPECT_EQ(flag_of(no), false) << no;
  EXPECT_EQ(flag_of("2"), std::nullopt);
  EXPECT_EQ(environment_flag("ACCEL_TEST_A"), std::nullopt);
  set({{"ACCEL_TEST_A", "perhaps"}});
  EXPECT_THROW(environment_flag("ACCEL_TEST_A"), ConfigError);
}

// A program without plugins is sharded if the launcher's flags say so, as with Accelerate.
TEST_F(EnvironmentTest, ALauncherAsksForAPlugin) {
  EXPECT_FALSE(fsdp_requested() || deepspeed_requested());
  set({{"ACCELERATE_USE_FSDP", "true"}});
  EXPECT_TRUE(fsdp_requested() && !deepspeed_requested());
  set({{"ACCELERATE_USE_FSDP", "false"}, {"ACCELERATE_USE_DEEPSPEED", "true"}});
  EXPECT_TRUE(!fsdp_requested() && deepspeed_requested());
}

// The program was started directly, for example in a debugger.
TEST_F(EnvironmentTest, WithoutVariablesThisIsASingleProcess) {
  const auto launch = read_launch_environment();
  EXPECT_FALSE(launch.is_launched);
  EXPECT_EQ(launch.rank, 0);
  EXPECT_EQ(launch.world_size, 1);
}

// Each launcher has its own names. A program must run under all of them unchanged.
TEST_F(EnvironmentTest, TorchrunsVariablesAreRead) {
  set({{"RANK", "5"},
       {"WORLD_SIZE", "8"},
       {"LOCAL_RANK", "1"},
       {"LOCAL_WORLD_SIZE", "4"},
       {"MASTER_ADDR", "10.0.0.7"},
       {"MASTER_PORT", "4321"}});
  expect_place(5, 8, 1, 4);
  EXPECT_EQ(read_launch_environment().master_address, "10.0.0.7");
  EXPECT_EQ(read_launch_environment().master_port, 4321);
}

// MPI launchers do not set MASTER_ADDR, so the user has to.
TEST_F(EnvironmentTest, OpenMpisVariablesAreRead) {
  set({{"OMPI_COMM_WORLD_RANK", "3"},
       {"OMPI_COMM_WORLD_SIZE", "4"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
       {"MASTER_ADDR", "10.0.0.7"}});
  expect_place(3, 4, 1, 2);
}

TEST_F(EnvironmentTest, MpichsVariablesAreRead) {
  set({{"PMI_RANK", "2"},
       {"PMI_SIZE", "6"},
       {"MPI_LOCALRANKID", "0"},
       {"MPI_LOCALNRANKS", "2"},
       {"MASTER_ADDR", "10.0.0.7"}});
  expect_place(2, 6, 0, 2);
}

TEST_F(EnvironmentTest, SlurmsVariablesAreRead) {
  set({{"SLURM_PROCID", "7"},
       {"SLURM_STEP_NUM_TASKS", "16"},
       {"SLURM_LOCALID", "3"},
       {"SLURM_NTASKS_PER_NODE", "4"},
       {"MASTER_ADDR", "10.0.0.7"}});
  expect_place(7, 16, 3, 4);
}

// "3(x2),2,1": three tasks on each of two nodes, then two, then one. Rank 6 is the first of the third node.
TEST_F(EnvironmentTest, SlurmsTasksPerNodeGiveTheRanksOfEachMachine) {
  set({{"SLURM_PROCID", "6"},
       {"SLURM_STEP_NUM_TASKS", "9"},
       {"SLURM_LOCALID", "0"},
       {"SLURM_STEP_TASKS_PER_NODE", "3(x2),2,1"},
       {"MASTER_ADDR", "10.0.0.7"}});
  for (const auto& [node, size] : {std::pair("0", 3), {"1", 3}, {"2", 2}, {"3", 1}}) {
    set({{"SLURM_NODEID", node}});
    EXPECT_EQ(read_launch_environment().local_world_size, size) << node;
  }
  set({{"SLURM_NODEID", "4"}});
  EXPECT_THAT(problems(), HasSubstr("SLURM_STEP_TASKS_PER_NODE: '3(x2),2,1' contains no entry for machine 4, the value "
                                    "of SLURM_NODEID; expected"));
}

// A batch script has the variables of a SLURM job, but it is no rank of a step.
TEST_F(EnvironmentTest, ABatchScriptIsOneProcess) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}});
  EXPECT_FALSE(read_launch_environment().is_launched);
}

// Ranks on other machines cannot reach 127.0.0.1, so a default address would hang.
TEST_F(EnvironmentTest, SeveralMachinesNeedAnAddress) {
  set({{"OMPI_COMM_WORLD_RANK", "1"},
       {"OMPI_COMM_WORLD_SIZE", "2"},
       {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_THAT(problems(), HasSubstr("1 of 2 ranks are on this machine, but MASTER_ADDR is not set"));
}

// Slurm then starts torchrun once, and its variables describe that single task.
TEST_F(EnvironmentTest, TorchrunInsideASlurmJobPrecedes) {
  set({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(read_launch_environment().rank, 1);
  EXPECT_EQ(read_launch_environment().world_size, 2);
}

// The best guess on one machine.
TEST_F(EnvironmentTest, WithoutLocalVariablesAllRanksAreLocal) {
  set({{"RANK", "1"}, {"WORLD_SIZE", "3"}});
  expect_place(1, 3, 1, 3);
}

// A script that forgot to export a variable would otherwise start many single processes.
TEST_F(EnvironmentTest, OnlyOneOfRankAndWorldSizeIsAProblem) {
  set({{"RANK", "0"}});
  EXPECT_THAT(problems(), HasSubstr("RANK and WORLD_SIZE"));
  unsetenv("RANK");
  set({{"WORLD_SIZE", "2"}});
  EXPECT_THAT(problems(), HasSubstr("RANK and WORLD_SIZE"));
}

// Ranks count from 0, so rank 4 of 4 is a common slip in scripts.
TEST_F(EnvironmentTest, ImpossibleRanksAndPortsAreInOneMessage) {
  set({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "65536"}});
  EXPECT_THAT(problems(), ::testing::AllOf(HasSubstr("RANK 4"), HasSubstr("MASTER_PORT 65536")));
}

TEST_F(EnvironmentTest, AllTextsThatAreNoIntegersAreInOneMessage) {
  set({{"RANK", "first"}, {"WORLD_SIZE", "all"}, {"LOCAL_RANK", "near"}, {"MASTER_PORT", "http"}});
  EXPECT_THAT(problems(), ::testing::AllOf(HasSubstr("RANK: expected an integer, got 'first'"), HasSubstr("'all'"),
                                           HasSubstr("'near'"), HasSubstr("'http'")));
}

TEST_F(EnvironmentTest, AWorldOfNoRanksIsAProblem) {
  set({{"RANK", "0"}, {"WORLD_SIZE", "0"}});
  EXPECT_THAT(problems(), HasSubstr("WORLD_SIZE 0"));
}

// Names are in upper case, as in Python, and a variable that was unset is unset again.
TEST_F(EnvironmentTest, PatchedVariablesAreRestored) {
  set({{"RANK", "3"}});
  {
    const auto scope = patch_environment({{"rank", "1"}, {"ACCEL_PATCHED", "new"}});
    EXPECT_EQ(environment("RANK"), "1");
    EXPECT_EQ(environment("ACCEL_PATCHED"), "new");
  }
  EXPECT_EQ(environment("RANK"), "3");
  EXPECT_EQ(environment("ACCEL_PATCHED"), std::nullopt);
}

TEST_F(EnvironmentTest, AClearedEnvironmentIsRestored) {
  set({{"RANK", "3"}});
  const auto path = environment("PATH");
  {
    const auto scope = clear_environment();
    EXPECT_EQ(environment("RANK"), std::nullopt);
    EXPECT_EQ(environment("PATH"), std::nullopt);
    setenv("ACCEL_PATCHED", "new", 1);
  }
  EXPECT_EQ(environment("RANK"), "3");
  EXPECT_EQ(environment("PATH"), path);
  EXPECT_EQ(environment("ACCEL_PATCHED"), std::nullopt);
}

}  // namespace
}  // namespace accel
