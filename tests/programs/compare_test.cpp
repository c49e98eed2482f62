// sim-run compare: equal runs are equal, a planted deviation is named with its rank, step, module and kind, and wrong
// usage is refused before anything runs.
#include <filesystem>
#include <fstream>

#include "tests/programs/support/bad_input.hpp"

namespace accel::testing::compare_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

class CompareTest : public ExperimentFiles {
 protected:
  static CommandResult compare(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {bin("sim-run"), "compare", "--ranks", "2"});
    return run_command(arguments, {.limit = std::chrono::seconds(60)});
  }
  // Compares simulated with Gloo ranks of tests/programs/compared_training.cpp.
  static CommandResult compare_training(const std::string& kind, std::vector<std::string> options = {}) {
    options.insert(options.end(), {"--", bin("compared_training"), kind});
    return compare(std::move(options));
  }
};

TEST_F(CompareTest, EqualRunsOfAProgramAreExitCodeZero) {
  const auto steps = compare_training("none");
  EXPECT_EQ(steps.exit_code, 0) << steps.output << steps.error;
  // Per rank: the prepared parameters, then per step a loss, the parameters and the generator.
  EXPECT_EQ(steps.output, "equal: 2 ranks, 26 observations on each side\n");
  EXPECT_THAT(steps.error, IsEmpty());
  const auto tensors = compare_training("none", {"--tensors"});
  EXPECT_EQ(tensors.exit_code, 0) << tensors.output << tensors.error;
  // Per rank: 8 prepared parameters, then per step the input and output of the model, 5 outputs of modules, 4 input
  // gradients (the first layer's input needs none), a loss, 8 parameters and the generator.
  EXPECT_EQ(tensors.output, "equal: 2 ranks, 184 observations on each side\n");
}

// Without tensors a deviation shows in the loss, or in the parameters of all ranks after its update.
TEST_F(CompareTest, ADeviationIsNamedWithItsRankAndStep) {
  for (const auto& [kind, difference] :
       {std::pair("output", "rank 1, step 2: the loss is [0-9.e-]+ on a \\(sim\\), but [0-9.e-]+ on b \\(gloo\\)"),
        {"gradient", "rank 0, step 2: the parameters differ"},
        {"parameter", "rank 1, step 2: the parameters differ"},
        {"generator", "rank 1, step 2: the generator state differs"},
        {"length", "rank 0, step 3: a \\(sim\\) computes the loss, but b \\(gloo\\) ends before it"}}) {
    const auto run = compare_training(kind);
    EXPECT_EQ(run.exit_code, 1) << run.error;
    EXPECT_THAT(run.output, MatchesRegex(std::string("different: ") + difference + "\n"));
  }
}

// The norms show whether a difference is one of rounding.
TEST_F(CompareTest, WithTensorsADeviationIsNamedWithItsModuleAndKind) {
  const std::string norms = "norm [0-9.e-]+ on a \\(sim\\); Float [^n]*, norm [0-9.e-]+ on b \\(gloo\\)\n";
  for (const auto& [kind, difference] :
       {std::pair("input", "rank 1, step 2: the input of the model differs: Float \\[4, 6\\], "),
        {"output", "rank 1, step 2: the output of module body.1 differs: Float \\[4, 8\\], "},
        {"gradient", "rank 1, step 2: the input gradient of module body.0 differs: Float \\[4, 8\\], "},
        {"parameter", "rank 1, step 2: parameter last.bias differs: Float \\[1\\], "}}) {
    const auto run = compare_training(kind, {"--tensors"});
    EXPECT_EQ(run.exit_code, 1) << run.error;
    EXPECT_THAT(run.output, MatchesRegex(std::string("different: ") + difference + norms));
  }
}

TEST_F(CompareTest, TheSidesMayBeSwapped) {
  const auto run = compare_training("length", {"--a", "gloo", "--b", "sim"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, HasSubstr("b (sim) computes the loss, but a (gloo) ends before it"));
}

// The side's own exit code, and its message.
TEST_F(CompareTest, AFailureOfOneSideIsReportedWithItsError) {
  const auto run = compare_training("throw");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.output, IsEmpty());
  EXPECT_THAT(run.error, AllOf(HasSubstr("side b (gloo) ended with exit code 1"),
                               HasSubstr("the disk of the real ranks is full")));
  TemporaryFolder processes;
  const auto diagnosed = compare({"--", bin("faulty_program"), "skip", processes.path()});
  EXPECT_EQ(diagnosed.exit_code, 3) << "the simulator's diagnosis";
  EXPECT_THAT(diagnosed.error, AllOf(HasSubstr("side a (sim) ended with exit code 3"), HasSubstr("all_reduce")));
}

TEST_F(CompareTest, AProgramThatRecordsNothingIsAnError) {
  TemporaryFolder processes;
  const auto run = compare({"--", bin("faulty_program"), "ok", processes.path()});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, HasSubstr("neither side recorded anything"));
}

TEST_F(CompareTest, ExperimentsAreEqualOnBothBackends) {
  for (const std::string experiment : {"cnn_adamw_accumulation", "gpt_adamw_accumulation", "gpt_fsdp"}) {
    const auto run =
        compare({"--max-steps", "3", "--tensors", source("tests/programs/experiments/" + experiment + ".yaml")});
    EXPECT_EQ(run.exit_code, 0) << experiment << ": " << run.output << run.error;
  }
}

TEST_F(CompareTest, AnOverrideOfSideBAloneIsADifference) {
  const auto steps = compare({"--b", "sim", "--set-b", "optimizer.lr=0.2", good()});
  EXPECT_EQ(steps.exit_code, 1) << steps.error;
  EXPECT_EQ(steps.output, "different: rank 0, step 0: the parameters differ\n");
  const auto tensors = compare({"--b", "sim", "--set-b", "seed=2", "--tensors", good()});
  EXPECT_EQ(tensors.exit_code, 1) << tensors.error;
  EXPECT_THAT(tensors.output,
              StartsWith("different: rank 0, step 0: prepared parameter 1.weight differs: Float [8, 784]"));
}

// Recording must not change a run: neither its numbers nor its random draws.
TEST_F(CompareTest, ARecordedRunHasTheTraceOfAnUnrecordedOne) {
  const auto experiment = source("tests/programs/experiments/gpt_adamw_accumulation.yaml");
  std::string traces[2];
  for (const bool is_recorded : {false, true}) {
    std::vector<std::string> command{"--ranks", "2", "--trace", folder_.path("trace.jsonl"), "--max-steps", "4"};
    if (is_recorded) command.insert(command.end(), {"--record", folder_.path(), "--record-tensors"});
    command.push_back(experiment);
    const auto run = sim_run(command);
    EXPECT_EQ(run.exit_code, 0) << run.error;
    traces[is_recorded ? 1 : 0] = text_of(folder_.path("trace.jsonl"));
  }
  EXPECT_THAT(traces[0], HasSubstr("parameters_sha256"));
  EXPECT_EQ(traces[0], traces[1]);
  EXPECT_THAT(text_of(folder_.path("rank1.jsonl")), AllOf(HasSubstr("input gradient"), HasSubstr("evaluation output")));
}

TEST_F(CompareTest, ThePageShowsTheDifference) {
  const auto page = folder_.path("page/index.html");
  EXPECT_EQ(compare_training("output", {"--tensors", "--report", folder_.path("page")}).exit_code, 1);
  EXPECT_THAT(text_of(page), AllOf(HasSubstr("✕ different"), HasSubstr("rank 1, step 2: the output of module body.1"),
                                   HasSubstr("the output of module body.0")));
  EXPECT_EQ(compare_training("none", {"--report", folder_.path("page")}).exit_code, 0);
  EXPECT_THAT(text_of(page), AllOf(HasSubstr("✓ equal"), Not(HasSubstr("✕ different"))));
}

TEST_F(CompareTest, WrongUsageIsRefused) {
  const auto program = bin("compared_training");
  expect_refused(compare({"--b", "mpi", good()}), AllOf(HasSubstr("--b"), HasSubstr("mpi")));
  expect_refused(compare({}), HasSubstr("compare: expected an experiment file or `-- PROGRAM [ARGS...]`"));
  expect_refused(compare({"--"}), HasSubstr("compare: expected an experiment file"));
  expect_refused(compare({"--a", "gloo", good()}), HasSubstr("--a gloo --b gloo: both sides are equal"));
  expect_refused(compare({program}), HasSubstr("is a program; put `--` before it: sim-run compare"));
  expect_refused(compare({"--set-b", "seed=2", "--b", "python", "--", program}),
                 AllOf(HasSubstr("--set, --set-b, --max-steps: only experiments support these options"),
                       HasSubstr("python: only experiments run under Python's Accelerate")));
  expect_refused(compare({"--max-steps", "0", "--report", good() + "/page", good()}),
                 AllOf(HasSubstr("--max-steps: expected 1 or more, got 0"), HasSubstr("--report: ")));
  expect_refused(sim_run({"compare", "--ranks", "0", good()}), HasSubstr("--ranks: 0 ranks; expected 1 to"));
  expect_refused(compare({"--set-b", "batch_size=0", good()}), HasSubstr("batch_size"));
  expect_refused(compare({"--max-step", "3", good()}), HasSubstr("did you mean --max-steps?"));
#ifndef ACCEL_CUDA
  expect_refused(compare({"--b", "nccl", good()}), HasSubstr("--b nccl: this build has no CUDA"));
#endif
}

TEST_F(CompareTest, AMissingPythonIsReportedWithTheCommandThatInstallsIt) {
  const auto run = run_command({bin("sim-run"), "compare", "--b", "python", "--tensors", good()},
                               {.environment = {{"ACCEL_CACHE_DIR", folder_.path("no-cache")}}});
  expect_refused(run,
                 AllOf(HasSubstr("--b python: Python's Accelerate is not installed in " + folder_.path("no-cache")),
                       HasSubstr("./dev setup --oracle"), HasSubstr("--tensors: Python's side records losses")));
}

// A stand-in for Python's environment, which tests without it use: prints a trace whose second loss is another.
TEST_F(CompareTest, PythonsTraceIsComparedFieldByField) {
  const auto trace = [&](const std::string& backend) {
    EXPECT_EQ(sim_run({"--backend", backend, "--ranks", "2", "--trace", folder_.path("trace.jsonl"), good()}).exit_code,
              0);
    return text_of(folder_.path("trace.jsonl"));
  };
  auto lines = trace("gloo");
  std::filesystem::create_directories(folder_.path("oracle/bin"));
  folder_.write("oracle/.complete", "");
  folder_.write("oracle/bin/python", "#!/bin/sh\ncat '" + folder_.path("lines") + "'\n");
  std::filesystem::permissions(folder_.path("oracle/bin/python"), std::filesystem::perms::owner_all);
  const auto compare_with = [&](const std::string& text) {
    folder_.write("lines", text);
    return run_command({bin("sim-run"), "compare", "--ranks", "2", "--b", "python", good()},
                       {.environment = {{"ACCEL_CACHE_DIR", folder_.path()}}});
  };
  const auto equal = compare_with(lines);
  EXPECT_EQ(equal.exit_code, 0) << equal.output << equal.error;
  const auto place = lines.find("\"lr\":0.1", lines.find("\"step\":1"));
  ASSERT_NE(place, std::string::npos);
  const auto different = compare_with(lines.replace(place, 8, "\"lr\":0.2"));
  EXPECT_EQ(different.exit_code, 1) << different.error;
  EXPECT_EQ(different.output,
            "different: rank 0, step 1: the learning rate is 0.1 on a (sim), but 0.2 on b (python)\n");
}

}  // namespace
}  // namespace accel::testing::compare_test
