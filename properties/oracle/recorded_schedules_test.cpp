// Recorded effects of Python's schedules on their optimizers, against ours: every bit of every rate and momentum.
// Cosines and powers come from the C library on both sides. A C library that rounds differently fails here first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "properties/gen/schedule_values.hpp"
#include "reference/optim/schedules/schedules.hpp"

namespace accel::testing::recorded_schedules_test {
namespace {

using Json = nlohmann::json;

struct Record {
  Json request, expected;
};

std::vector<Record> read_records() {
  std::ifstream in(std::string(std::getenv("ACCEL_SOURCE_DIR")) + "/properties/oracle/recorded/schedules.jsonl");
  std::vector<Record> records;
  for (std::string line; std::getline(in, line);) {
    auto json = Json::parse(line);
    if (json.contains("recorded")) continue;  // how the file was made
    if (json["expected"].contains("error")) json["expected"]["error"] = "ArgumentError";
    records.push_back({json["request"], json["expected"]});
  }
  return records;
}

const std::vector<Record>& records() {
  static const std::vector<Record> kRecords = read_records();
  return kRecords;
}

// Collects the names of the schedule and of the schedules that it consists of.
void add_names(const Json& scheduler, std::set<std::string>& names) {
  names.insert(scheduler.value("type", scheduler["name"].get<std::string>()));
  if (!scheduler.contains("schedulers")) return;
  for (const auto& part : scheduler["schedulers"]) add_names(part, names);
}

// Guards against a schedule that is added without a record.
TEST(RecordedSchedulesTest, EveryScheduleIsRecorded) {
  std::set<std::string> names;
  for (const auto& record : records()) {
    if (!record.expected.contains("error")) add_names(record.request["scheduler"], names);
  }
  const auto expect_recorded = [&](const char* name, const auto&) { EXPECT_TRUE(names.contains(name)) << name; };
  optim::for_each_schedule<&optim::ScheduleNames::experiment>(expect_recorded);
  optim::for_each_schedule<&optim::ScheduleNames::transformers>(expect_recorded);
  for (const auto* name : {"lambda", "multiplicative", "linear", "sequential", "chained"}) expect_recorded(name, 0);
}

TEST(RecordedSchedulesTest, EveryStepHasPythonsBits) {
  ASSERT_GE(records().size(), 300U);
  for (const auto& [request, expected] : records()) EXPECT_EQ(schedule_values(request), expected) << request;
}

TEST(RecordedSchedulesTest, AStateOfPythonContinuesAsIfNeverStopped) {
  int resumed = 0;
  for (const auto& [request, expected] : records()) {
    if (!expected.contains("state")) continue;
    EXPECT_EQ(resumed_schedule_values(request, expected["state"]), expected) << request;
    ++resumed;
  }
  EXPECT_GE(resumed, 250);
}

TEST(RecordedSchedulesTest, AStateOfAnyOtherStepContinuesAsIfNeverStopped) {
  for (const auto& [recorded, expected] : records()) {
    auto request = recorded;
    // A step that depends on the recorded one, so that all phases of the schedules are hit over the records.
    request["state_at"] = (recorded["state_at"].get<int>() * 7 + 13) % 1001;
    const auto whole = schedule_values(request);
    if (!whole.contains("state")) continue;  // the run ends before that step
    EXPECT_EQ(resumed_schedule_values(request, whole["state"]), whole) << request;
  }
}

}  // namespace
}  // namespace accel::testing::recorded_schedules_test
