// Recorded answers of Python's Accelerate to plan requests, against `sim-run plan` on simulated ranks and against Gloo
// processes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::recorded_plans_test {
namespace {

using Json = nlohmann::json;

const Json kNotCompared = "not compared";

struct Record {
  Json request, expected;
};

std::vector<Record> read_records() {
  std::ifstream in(source("properties/oracle/recorded/plans.jsonl"));
  std::vector<Record> records;
  for (std::string line; std::getline(in, line);) {
    const auto json = Json::parse(line);
    if (!json.contains("recorded")) records.push_back({json["request"], json["expected"]});  // how the file was made
  }
  return records;
}

// Asks sim-run for all records in one process.
std::vector<Json> answers_of_sim_run(const std::vector<Record>& records) {
  std::string requests;
  for (const auto& record : records) requests += record.request.dump() + "\n";
  const TemporaryFolder folder;
  const auto run = run_command({bin("sim-run"), "plan", "--requests", folder.write("requests.jsonl", requests)});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  std::vector<Json> answers;
  std::istringstream lines(run.output);
  for (std::string line; std::getline(lines, line);) answers.push_back(Json::parse(line));
  return answers;
}

// Asks jobs of Gloo processes, one per number of ranks.
std::vector<Json> answers_of_gloo(const std::vector<Record>& records) {
  std::string requests;
  std::set<int> sizes;
  for (const auto& record : records) {
    requests += record.request.dump() + "\n";
    sizes.insert(record.request["ranks"].get<int>());
  }
  std::vector<Json> answers(records.size());
  for (const int size : sizes) {
    const TemporaryFolder folder;
    const auto run =
        run_command({bin("sim-run"), "--ranks", std::to_string(size), "--backend", "gloo", "--", bin("oracle-answers"),
                     "plans", folder.write("requests.jsonl", requests), folder.path()},
                    {.limit = std::chrono::minutes(10)});
    EXPECT_EQ(run.exit_code, 0) << run.error;
    std::ifstream lines(folder.path("rank0.jsonl"));
    std::string line;
    for (std::size_t index = 0; std::getline(lines, line); ++index) {
      if (line != "null") answers.at(index) = Json::parse(line);
    }
  }
  return answers;
}

// Returns the first difference as a sentence, or "".
std::string difference(const Json& expected, const Json& answer) {
  // Only the class of an error is compared, because the texts differ on purpose.
  if (expected.contains("error") || answer.contains("error")) {
    const auto left = expected.value("error", "none"), right = answer.value("error", "none");
    return left == right ? "" : "error is " + left + " and " + right + " (" + answer.value("message", "") + ")";
  }
  if (expected["epochs"].size() != answer["epochs"].size()) return "other number of epochs";
  for (std::size_t epoch = 0; epoch < expected["epochs"].size(); ++epoch) {
    for (const auto& [field, value] : expected["epochs"][epoch].items()) {
      const auto& ours = answer["epochs"][epoch][field];
      // Fields that a known fault of Accelerate affects are marked "not compared".
      if (value == kNotCompared || value == ours) continue;
      return "epoch " + std::to_string(epoch) + ": " + field + " is " + value.dump() + " and " + ours.dump();
    }
  }
  return "";
}

// The count guards against a file that is truncated or read incompletely.
void expect_answers_of_accelerate(std::vector<Json> (*answer)(const std::vector<Record>&)) {
  const auto records = read_records();
  ASSERT_GE(records.size(), 600U);
  const auto answers = answer(records);
  ASSERT_EQ(answers.size(), records.size());
  for (std::size_t index = 0; index < records.size(); ++index) {
    EXPECT_EQ(difference(records[index].expected, answers[index]), "") << records[index].request;
  }
}

TEST(RecordedPlansTest, SimRunAnswersWhatAccelerateAnswers) { expect_answers_of_accelerate(answers_of_sim_run); }

TEST(RecordedPlansTest, GlooProcessesAnswerWhatAccelerateAnswers) { expect_answers_of_accelerate(answers_of_gloo); }

// Tests the comparison itself: a comparison that accepts everything would pass all records.
TEST(RecordedPlansTest, DifferenceInAnyFieldIsNoticed) {
  const auto record =
      Json::parse(R"({"epochs":[{"ranks":[[[0]],[[1]]],"end_of_dataloader":[true],"gathered_for_metrics":[[0,1]]}]})");
  EXPECT_EQ(difference(record, record), "");
  for (const auto& [field, value] : record["epochs"][0].items()) {
    auto changed = record;
    changed["epochs"][0][field] = nullptr;
    EXPECT_THAT(difference(record, changed), ::testing::HasSubstr(field));
    changed["epochs"][0][field] = kNotCompared;
    EXPECT_EQ(difference(changed, record), "");
  }
  const auto error = Json::parse(R"({"error":"ValueError","message":"no"})");
  EXPECT_NE(difference(record, error), "");
  EXPECT_NE(difference(error, record), "");
  EXPECT_NE(difference(record, Json::parse(R"({"epochs":[]})")), "");
}

}  // namespace
}  // namespace accel::testing::recorded_plans_test
