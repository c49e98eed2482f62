// Runs every file of configs/sim/faults through sim-run: exit code, diagnosis and duration must be as documented,
// for 12 steps of the mlp, replicated and sharded. The tests also pin the diagnosis format, which other programs
// parse.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "sim/faults/fault.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::fault_files_test {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr double kSecondsMax = 10;
constexpr const char* kExperiment =
    "task: fashion_mnist\n"
    "limit: 768\n"  // 12 steps on 8 ranks
    "eval_limit: 64\n"
    "model: {name: mlp, hidden: 32}\n"
    "optimizer: {name: sgd, lr: 0.1}\n"
    "batch_size: 8\n"
    "epochs: 2\n"
    "max_steps: 12\n"
    "seed: 1\n";

// The run continues to its end under these faults. All others stop it.
const std::set<std::string> kOutlived{"rank_pause",    "slow_rank", "jitter",     "rank_restart",
                                      "message_delay", "slow_link", "store_slow", "nan_gradient",
                                      "torn_write",    "disk_full", "rank_join"};
// Of those, the faults that affect only a rank that saves, or one that another fault has ended.
const std::set<std::string> kUnstruck{"torn_write", "disk_full", "rank_join"};

bool is_text_or_null(const Json& value) {
  return value.is_null() || (value.is_string() && !value.get<std::string>().empty());
}
bool is_call_number(const Json& value) { return value.is_number_unsigned(); }

// Ranks are ascending and unique, as other programs rely on.
void expect_ranks(const Json& ranks, int num_ranks) {
  ASSERT_TRUE(ranks.is_array());
  int before = -1;
  for (const auto& rank : ranks) {
    EXPECT_GT(rank.get<int>(), before) << "ascending";
    EXPECT_LT(before = rank.get<int>(), num_ranks);
  }
}

void expect_place(const Json& where) {
  EXPECT_THAT(where.is_null() ? "file:1" : where.get<std::string>(), ::testing::ContainsRegex(":[0-9]+$"));
}

void expect_difference(const Json& difference, int num_ranks) {
  if (difference.is_null()) return;
  EXPECT_TRUE(difference.at("group").is_string());
  EXPECT_TRUE(is_call_number(difference.at("sequence")));
  EXPECT_GE(difference.at("calls").size(), 2u);
  for (const auto& side : difference.at("calls")) {
    expect_ranks(side.at("ranks"), num_ranks);
    EXPECT_FALSE(side.at("call").get<std::string>().empty());
    expect_place(side.at("where"));
  }
}

void expect_waiting(const Json& waiting, int num_ranks) {
  ASSERT_TRUE(waiting.is_array());
  for (const auto& one : waiting) {
    EXPECT_LT(one.at("rank").get<int>(), num_ranks);
    EXPECT_TRUE(one.at("op").is_string());
    EXPECT_TRUE(is_call_number(one.at("sequence")));
  }
}

/// Checks the format that other programs rely on: the keys, their order and which of them may be null.
void expect_diagnosis(const Json& diagnosis, int num_ranks) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : diagnosis.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("kind", "fault", "ranks", "op", "group", "sequence", "shapes", "where",
                                "first_difference", "waiting", "text"));
  EXPECT_TRUE(
      (std::set<std::string>{"none", "hang", "desync", "rank_failure", "fault"}).contains(diagnosis.at("kind")));
  expect_ranks(diagnosis.at("ranks"), num_ranks);
  for (const auto* key : {"fault", "op", "group", "where"}) EXPECT_TRUE(is_text_or_null(diagnosis.at(key))) << key;
  // op, group and sequence describe one call, so they are null together.
  EXPECT_EQ(diagnosis.at("op").is_null(), diagnosis.at("sequence").is_null());
  EXPECT_EQ(diagnosis.at("op").is_null(), diagnosis.at("group").is_null());
  EXPECT_TRUE(diagnosis.at("sequence").is_null() || is_call_number(diagnosis.at("sequence")));
  for (const auto& shape : diagnosis.at("shapes")) EXPECT_TRUE(shape.is_array());
  expect_place(diagnosis.at("where"));
  expect_difference(diagnosis.at("first_difference"), num_ranks);
  expect_waiting(diagnosis.at("waiting"), num_ranks);
  EXPECT_TRUE(diagnosis.at("text").is_string());
}

struct Case {
  int num_ranks;
  bool is_sharded;
};

class FaultFilesTest : public ::testing::TestWithParam<std::tuple<std::string, Case>> {
 protected:
  const std::string& kind() const { return std::get<0>(GetParam()); }
  int num_ranks() const { return std::get<1>(GetParam()).num_ranks; }
  bool is_sharded() const { return std::get<1>(GetParam()).is_sharded; }
  CommandResult run() const {
    return train(
        {"--faults", source("configs/sim/faults/" + kind() + ".yaml"), "--diagnosis", folder_.path("diagnosis.json")});
  }
  /// Returns the lines of a trace: losses and parameters of every rank.
  std::set<std::string> trace_of(std::vector<std::string> options) const {
    options.insert(options.end(), {"--trace", folder_.path("trace.jsonl")});
    EXPECT_EQ(train(options).exit_code, 0);
    std::ifstream in(folder_.path("trace.jsonl"));
    std::set<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.insert(line);
    return lines;
  }
  Json diagnosis() const { return Json::parse(read_text(folder_.path("diagnosis.json"))); }

  TemporaryFolder folder_;

 private:
  CommandResult train(const std::vector<std::string>& options) const {
    std::vector<std::string> command{bin("sim-run"), "--quiet", "--ranks", std::to_string(num_ranks())};
    command.insert(command.end(), options.begin(), options.end());
    command.push_back(folder_.write(
        "experiment.yaml",
        kExperiment + std::string(is_sharded() ? "accelerator: {fsdp_plugin: {fsdp_version: 2}}\n" : "")));
    return run_command(command);
  }
  static std::string read_text(const std::string& path) {
    std::ifstream in(path);
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

// From the table of faults and not from the folder, so a kind without a file fails.
std::vector<std::string> all_kinds() {
  std::vector<std::string> names;
  for (const auto& rule : sim::kFaultRules) names.emplace_back(rule.name);
  return names;
}

// Eight ranks make a majority of replicas; the sharded runs have no replicas to compare.
constexpr Case kOnFour{4, false}, kOnEight{8, false}, kSharded{4, true};

std::string name_of_case(const ::testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
  const auto& [kind, where] = info.param;
  return kind + "_on_" + std::to_string(where.num_ranks) + (where.is_sharded ? "_sharded" : "");
}

INSTANTIATE_TEST_SUITE_P(Kinds, FaultFilesTest,
                         ::testing::Combine(::testing::ValuesIn(all_kinds()),
                                            ::testing::Values(kOnFour, kOnEight, kSharded)),
                         name_of_case);

TEST_P(FaultFilesTest, EndsAsDocumentedWithADiagnosisThatNamesTheFault) {
  const auto result = run();
  // The replicas check cannot find a bit flip in a sharded model, because no two ranks hold the same parameters.
  const bool is_outlived = kOutlived.contains(kind()) || (is_sharded() && kind() == "bit_flip");
  EXPECT_EQ(result.exit_code, is_outlived ? 0 : 3) << result.error;
  EXPECT_LT(result.seconds, kSecondsMax);
  EXPECT_EQ(result.output.empty(), !is_outlived) << "the summary is of runs that ended well";
  const auto diagnosis = this->diagnosis();
  expect_diagnosis(diagnosis, num_ranks());
  EXPECT_EQ(diagnosis.at("kind"), is_outlived ? "none" : "fault");
  EXPECT_EQ(diagnosis.at("fault"), is_outlived ? Json(nullptr) : Json(kind()));
  EXPECT_EQ(diagnosis.at("ranks").empty(), is_outlived);
  const auto text = diagnosis.at("text").get<std::string>();
  if (kUnstruck.contains(kind())) {
    EXPECT_THAT(text,
                HasSubstr("the fault has not struck: the run never reached the event that triggers it: " + kind()))
        << "this run saves nothing, and loses no rank";
  } else {
    EXPECT_THAT(text, HasSubstr("injected fault: " + kind()));
  }
  EXPECT_THAT(result.error, HasSubstr(is_outlived ? "" : text.substr(0, text.find('\n'))))
      << "standard error says it too";
}

using OutlivedFaultFilesTest = FaultFilesTest;

INSTANTIATE_TEST_SUITE_P(Kinds, OutlivedFaultFilesTest,
                         ::testing::Combine(::testing::ValuesIn(kOutlived), ::testing::Values(kOnFour, kSharded)),
                         name_of_case);
INSTANTIATE_TEST_SUITE_P(WithoutReplicas, OutlivedFaultFilesTest, ::testing::Values(std::tuple("bit_flip", kSharded)),
                         name_of_case);

// A fault of timing must not change a single bit, or results on a slow network would not be reproducible.
TEST_P(OutlivedFaultFilesTest, ChangesNumbersOnlyIfItIsAboutNumbers) {
  EXPECT_EQ(trace_of({}) != trace_of({"--faults", source("configs/sim/faults/" + kind() + ".yaml")}),
            kind() == "nan_gradient" || kind() == "bit_flip");
}

}  // namespace
}  // namespace accel::testing::fault_files_test
