// The simulator's promise, on complete training programs: ranks that are threads of one process compute, bit by
// bit, what processes compute over Gloo. Each experiment adds a feature that could break it (bf16, windows,
// sharding, schedules).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/trace.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::trace_equality_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kExperiments[] = {"mlp_sgd_seedable",   "cnn_adamw_accumulation",
                                    "cnn_bf16_drop_last", "mlp_wide",
                                    "mlp_split_batches",  "gpt_adamw_accumulation",
                                    "gpt_bf16",           "gpt_fp8",
                                    "resnet_sgd",         "gpt_fsdp",
                                    "mlp_fp16_overflow",  "cnn_plateau",
                                    "llama_accumulation", "llama_fsdp",
                                    "torchvision_resnet"};
const std::string kSmallData = "mlp_in_order";
// Features that Accelerate lacks, so the comparison with Python leaves them out.
const std::string kWithoutPython[] = {"without_python/mlp_exact_weights", "without_python/resnet_sync_batchnorm",
                                      "without_python/mlp_zero", "without_python/gpt_experts"};

Trace run_traced(const std::string& experiment, int ranks, const std::string& backend) {
  const TemporaryFolder folder;
  const auto file = folder.path("trace.jsonl");
  const auto run = run_command({bin("sim-run"), "--backend", backend, "--ranks", std::to_string(ranks), "--trace", file,
                                source("tests/programs/experiments/" + experiment + ".yaml")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  // A run leaves its trace and no temporary file.
  EXPECT_THAT(folder.files(), ElementsAre("trace.jsonl"));
  return read_trace(file);
}

// The first simulation of this program with these ranks.
const Trace& simulated_trace(const std::string& experiment, int ranks) {
  static std::map<std::pair<std::string, int>, Trace> traces;
  const auto [trace, is_new] = traces.try_emplace({experiment, ranks});
  if (is_new) trace->second = run_traced(experiment, ranks, "sim");
  return trace->second;
}

int count_lines(const Trace& trace, const std::string& kind) {
  return static_cast<int>(
      std::count_if(trace.begin(), trace.end(), [&](const auto& line) { return std::get<3>(line.first) == kind; }));
}

using Case = std::tuple<std::string, int>;  // experiment, ranks

std::string name_of(const ::testing::TestParamInfo<Case>& info) {
  const auto& experiment = std::get<0>(info.param);
  return experiment.substr(experiment.find('/') + 1) + "_on_" + std::to_string(std::get<1>(info.param)) + "_ranks";
}

class TraceEqualityTest : public ::testing::TestWithParam<Case> {};

TEST_P(TraceEqualityTest, SimulatedRanksComputeWhatGlooProcessesCompute) {
  const auto& [experiment, ranks] = GetParam();
  const auto& simulated = simulated_trace(experiment, ranks);
  const auto real = run_traced(experiment, ranks, "gloo");
  EXPECT_THAT(differences(simulated, real), IsEmpty());
  EXPECT_EQ(count_lines(simulated, "end"), ranks);
  EXPECT_GE(count_lines(simulated, "eval"), ranks);
  EXPECT_GE(count_lines(simulated, "step"), 2 * ranks);
}

// On up to 8 ranks: Gloo's ring cuts chunks differently for each number of ranks.
std::vector<int> numbers_of_ranks() { return num_cases(1) > 1 ? std::vector{1, 2, 3, 4, 8} : std::vector{3, 8}; }

INSTANTIATE_TEST_SUITE_P(Experiments, TraceEqualityTest,
                         ::testing::Combine(::testing::ValuesIn(kExperiments), ::testing::ValuesIn(numbers_of_ranks())),
                         name_of);
// Small last batches matter where they do not reach all ranks.
INSTANTIATE_TEST_SUITE_P(SmallData, TraceEqualityTest,
                         ::testing::Combine(::testing::Values(kSmallData), ::testing::Values(3, 8)), name_of);

INSTANTIATE_TEST_SUITE_P(WithoutPython, TraceEqualityTest,
                         ::testing::Combine(::testing::ValuesIn(kWithoutPython),
                                            ::testing::ValuesIn(num_cases(1) > 1 ? std::vector{2, 3, 4}
                                                                                 : std::vector{3})),
                         name_of);

class RepeatTest : public ::testing::TestWithParam<std::string> {};

// Threads of the second run are scheduled differently, so this finds results that depend on the schedule.
TEST_P(RepeatTest, SecondSimulationGivesTheSameTrace) {
  EXPECT_THAT(differences(simulated_trace(GetParam(), 3), run_traced(GetParam(), 3, "sim")), IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Experiments, RepeatTest, ::testing::ValuesIn(kExperiments),
                         [](const auto& info) { return info.param; });

// One that accepts everything would make all tests above pass.
// --- the comparison itself -------------------------------------------------------------------------------------------

constexpr const char* kSteps =
    R"({"rank":0,"epoch":0,"step":0,"loss":"0x1.28ed28p+1","samples":32,"sync_gradients":true,"lr":0.001})"
    "\n"
    R"({"rank":1,"epoch":0,"step":0,"loss":"nan","samples":32,"sync_gradients":true,"lr":0.001})"
    "\n"
    R"({"rank":0,"epoch":0,"eval_correct":109,"eval_samples":203})"
    "\n"
    R"({"rank":0,"parameters_sha256":"abc"})"
    "\n";

std::vector<std::string> differences_after(const std::string& from, const std::string& to) {
  std::string changed = kSteps;
  const auto at = changed.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  changed.replace(at, from.size(), to);
  return differences(parse_trace(kSteps), parse_trace(changed));
}

TEST(TraceComparisonTest, EqualTracesDoNotDiffer) {
  EXPECT_THAT(differences(parse_trace(kSteps), parse_trace(kSteps)), IsEmpty());
}

TEST(TraceComparisonTest, OrderOfLinesIsFree) {
  const std::string text = kSteps;
  const auto second = text.find('\n') + 1;
  EXPECT_THAT(differences(parse_trace(text), parse_trace(text.substr(second) + text.substr(0, second))), IsEmpty());
}

TEST(TraceComparisonTest, TwoSpellingsOfOneLossAreEqual) {
  // The same value with another exponent.
  EXPECT_THAT(differences_after("0x1.28ed28p+1", "0x0.94769400p+2"), IsEmpty());
}

TEST(TraceComparisonTest, EveryChangedFieldIsNoticed) {
  EXPECT_THAT(differences_after("0x1.28ed28p+1", "0x1.28ed29p+1"), ElementsAre(HasSubstr("loss")));
  EXPECT_THAT(differences_after("\"nan\"", "\"inf\""), ElementsAre(HasSubstr("rank 1")));
  EXPECT_THAT(differences_after("\"samples\":32", "\"samples\":31"), ElementsAre(HasSubstr("samples is 32 and 31")));
  EXPECT_THAT(differences_after("true", "false"), ElementsAre(HasSubstr("sync_gradients")));
  // The next double after 0.001.
  EXPECT_THAT(differences_after("0.001", "0.0010000000000000002"), ElementsAre(HasSubstr("lr")));
  EXPECT_THAT(differences_after("109", "110"), ElementsAre(HasSubstr("eval_correct")));
  EXPECT_THAT(differences_after("203", "204"), ElementsAre(HasSubstr("eval_samples")));
  EXPECT_THAT(differences_after("abc", "abd"), ElementsAre(HasSubstr("parameters_sha256")));
}

TEST(TraceComparisonTest, LineOrFieldTooFewOrTooManyIsNoticed) {
  EXPECT_THAT(differences_after("{\"rank\":0,\"parameters_sha256\":\"abc\"}\n", ""),
              ElementsAre(HasSubstr("only in the left")));
  EXPECT_THAT(differences_after("\"rank\":1", "\"rank\":2"),
              ElementsAre(HasSubstr("rank 1"), HasSubstr("only in the right")));
  EXPECT_THAT(differences_after(",\"lr\":0.001", ""), ElementsAre(HasSubstr("only the left has lr")));
  EXPECT_THAT(differences_after("\"lr\"", "\"more\":1,\"lr\""), ElementsAre(HasSubstr("only the right has more")));
}

TEST(TraceComparisonTest, ADuplicateLineIsAnError) {
  EXPECT_THROW(parse_trace(std::string(kSteps) + kSteps), std::runtime_error);
}

}  // namespace
}  // namespace accel::testing::trace_equality_test
