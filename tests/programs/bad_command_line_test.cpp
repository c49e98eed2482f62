// Errors in the command line of sim-run, in the trace option, the environment and the build. Each must end with
// exit code 2, one message and no output: see bad_input.hpp. A wrong option that starts a long run costs an hour on
// a cluster.
#include <filesystem>
#include <fstream>

#include "tests/programs/support/bad_input.hpp"

namespace accel::testing::bad_command_line_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class BadCommandLineTest : public ExperimentFiles {};

TEST_F(BadCommandLineTest, NumberOfRanksOutsideTheRangeIsRefused) {
  // Both backends check alike, although the simulator could run ranks that a machine has no cores for.
  for (const auto* backend : {"sim", "gloo"}) {
    expect_refused(sim_run({"--backend", backend, "--ranks", "0", good()}),
                   HasSubstr("--ranks: 0 ranks; expected 1 to"));
    expect_refused(sim_run({"--backend", backend, "--ranks", "-3", good()}), HasSubstr("--ranks"));
    expect_refused(sim_run({"--backend", backend, "--ranks", "100000", good()}),
                   HasSubstr("--ranks: 100000 ranks; expected 1 to"));
  }
  expect_refused(sim_run({"--ranks", "abc", good()}), AllOf(HasSubstr("--ranks"), HasSubstr("abc")));
}

TEST_F(BadCommandLineTest, UnknownOptionOrBackendIsNamed) {
  expect_refused(sim_run({"--rank", "3", good()}), HasSubstr("--rank"));
  expect_refused(sim_run({"--backend", "mpi", good()}), AllOf(HasSubstr("--backend"), HasSubstr("mpi")));
}

TEST_F(BadCommandLineTest, RunWithoutAnExperimentIsRefused) { expect_refused(sim_run({}), HasSubstr("EXPERIMENT")); }

// A user fixes all mistakes after one run. If only the first were reported, six runs would be needed here.
TEST_F(BadCommandLineTest, AllThatIsWrongWithARehearsalIsInOneMessage) {
  expect_refused(
      sim_run({"--schedule", "random", "--pct-depth", "0", good()}),
      AllOf(HasSubstr("--pct-depth: expected 1 to 1000, got 0"), HasSubstr("no effect with --schedule random")));
  const auto run = sim_run({"--ranks", "0,3", "--schedule", "backwards", "--clock", "virtual", "--faults", "none.yaml",
                            "--diagnosis", "/no/folder/d.json", "--timeline", "/", good()});
  expect_refused(
      run, AllOf(HasSubstr("--ranks: 0 ranks"), HasSubstr("unknown schedule 'backwards'"),
                 HasSubstr("--clock virtual: needs --network"), HasSubstr("--faults: none.yaml is not a file"),
                 HasSubstr("--diagnosis: /no/folder is not a folder"), HasSubstr("--timeline: / cannot be written")));
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2,4", "--schedule", "random", good()}),
                 AllOf(HasSubstr("--ranks: expected one number"),
                       HasSubstr("--schedule: only the simulator supports this option")));
  expect_refused(
      sim_run({"explore", "--schedules", "0", "--schedule", "round-robin", "--timeline", "t.json", good()}),
      AllOf(HasSubstr("--schedules: expected 1 or more"), HasSubstr("--schedule round-robin: is a single schedule"),
            HasSubstr("--timeline: applies to one run")));
  expect_refused(sim_run({"--report", good() + "/page", good()}), HasSubstr("is not a folder that can be written to"));
  expect_refused(sim_run({"explore"}), HasSubstr("expected an experiment file"));
}

TEST_F(BadCommandLineTest, UnsupportedOptionsAreNamed) {
  expect_refused(sim_run({with("accelerator: {mixed_precision: fp4}")}),
                 HasSubstr("mixed_precision: expected no, fp16, bf16 or fp8, got 'fp4'"));
  expect_refused(
      sim_run({with("accelerator: {mixed_precision: fp8, ao_recipe_kwargs: {config: {recipe_name: columns}, "
                    "enable_fsdp_float8_all_gather: 3}}")}),
      AllOf(HasSubstr("recipe_name: float8 recipe: expected tensorwise, rowwise or rowwise_with_gw_hp, got 'columns'"),
            HasSubstr("enable_fsdp_float8_all_gather")));
  expect_refused(sim_run({with("dataloader_config: {order: random}")}),
                 HasSubstr("order: expected accelerate or elastic"));
}

// --set is parsed as YAML after the "=", so an unclosed list is a syntax error and not a string.
TEST_F(BadCommandLineTest, SetWithBadSyntaxIsRefused) {
  expect_refused(sim_run({"--set", "batch_size", good()}),
                 HasSubstr("--set: expected key.path=value, got 'batch_size'"));
  expect_refused(sim_run({"--set", "=3", good()}), HasSubstr("--set: expected key.path=value, got '=3'"));
  expect_refused(sim_run({"--set", "batch_size=[1", good()}),
                 AllOf(HasSubstr("--set batch_size=[1"), HasSubstr("not valid YAML")));
  expect_refused(sim_run({"--set", "task.name=3", good()}),
                 HasSubstr("--set task.name=3: 'task' is not a mapping; expected a path"));
}

TEST_F(BadCommandLineTest, SetOfAnUnknownKeyOrImpossibleValueIsRefused) {
  expect_refused(sim_run({"--set", "batch_sise=3", good()}), HasSubstr("batch_sise: unknown key"));
  expect_refused(sim_run({"--set", "model.hidden=none", good()}),
                 HasSubstr("model.hidden: expected 1 or more, got 'none'"));
  expect_refused(sim_run({"--max-steps", "0", good()}), HasSubstr("max_steps: expected 1 or more, got '0'"));
  expect_refused(sim_run({"--max-steps", "few", good()}), HasSubstr("--max-steps"));
}

TEST_F(BadCommandLineTest, TraceIntoAFolderThatDoesNotExistIsRefused) {
  expect_refused(sim_run({"--trace", folder_.path("none/trace.jsonl"), good()}),
                 AllOf(HasSubstr("--trace"), HasSubstr("none is not a folder")));
  expect_refused(sim_run({"--trace", folder_.path(), good()}),
                 // A folder exists but is no file to write to.
                 AllOf(HasSubstr("--trace"), HasSubstr("cannot be written")));
}

// Options are validated before any file is opened, so a mistake never leaves an empty trace.
TEST_F(BadCommandLineTest, RejectedRunLeavesNoFile) {
  const auto file = with("epochs: none");
  for (const auto* backend : {"sim", "gloo"})
    expect_refused(sim_run({"--backend", backend, "--trace", folder_.path("trace.jsonl"), file}), HasSubstr("epochs"));
  EXPECT_THAT(folder_.files(), ElementsAre("bad.yaml"));
}

// Output files are opened only after everything was checked.
TEST_F(BadCommandLineTest, RejectedRunKeepsTheTraceOfThePreviousRun) {
  const auto trace = folder_.write("trace.jsonl", "before\n");
  expect_refused(sim_run({"--trace", trace, with("epochs: none")}), HasSubstr("epochs"));
  std::string line;
  std::getline(std::ifstream(trace) >> std::ws, line);
  EXPECT_EQ(line, "before");
}

// Traces are written to a temporary file and renamed. Renaming over /dev/null would replace the device by a file.
TEST_F(BadCommandLineTest, TraceIntoADeviceIsWrittenThereAndDoesNotReplaceIt) {
  const auto link = folder_.path("device");
  std::filesystem::create_symlink("/dev/null", link);
  const auto run = sim_run({"--trace", link, good()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(folder_.files(), ElementsAre("device", "good.yaml"));
}

// The port is busy for the whole test, so this does not depend on timing.
TEST_F(BadCommandLineTest, BusyMasterPortIsNamed) {
  const BusyPort busy;
  const auto port = std::to_string(busy.port());
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", port}}),
                 HasSubstr("MASTER_PORT: port " + port + " is in use"));
}

TEST_F(BadCommandLineTest, EnvironmentVariableThatIsNoNumberIsRefused) {
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", "ssh"}}),
                 HasSubstr("MASTER_PORT: expected an integer, got 'ssh'"));
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", "99999"}}),
                 HasSubstr("MASTER_PORT"));
  expect_refused(sim_run({good()}, {{"ACCEL_TIMEOUT_SECONDS", "soon"}}),
                 HasSubstr("ACCEL_TIMEOUT_SECONDS: expected an integer, got 'soon'"));
}

#ifndef ACCEL_CUDA
// The backend exists but was not built; "unknown backend" would be misleading.
TEST_F(BadCommandLineTest, NcclInABuildWithoutCudaSaysHowToGetIt) {
  expect_refused(sim_run({"--backend", "nccl", "--ranks", "2", good()}),
                 AllOf(HasSubstr("--backend nccl: this build has no CUDA"), HasSubstr("./dev build gpu")));
}
#endif

}  // namespace
}  // namespace accel::testing::bad_command_line_test
