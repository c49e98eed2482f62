// What Python's schedules did to their optimizers, recorded, against ours: every bit of every rate and momentum. The
// cosines and powers are those of the C library on both sides; one that rounds otherwise than the recorded one's fails
// here first.
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

// Of the schedule and of those that it is made of.
void add_names(const Json& scheduler, std::set<std::string>& names) {
  names.insert(scheduler.value("type", scheduler["name"].get<std::string>()));
  if (!scheduler.contains("schedulers")) return;
  for (const auto& part : scheduler["schedulers"]) add_names(part, names);
}

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

TEST(RecordedSchedulesTest, AStateOfPythonsGoesOnAsIfNeverStopped) {
  int resumed = 0;
  for (const auto& [request, expected] : records()) {
    if (!expected.contains("state")) continue;
    EXPECT_EQ(resumed_schedule_values(request, expected["state"]), expected) << request;
    ++resumed;
  }
  EXPECT_GE(resumed, 250);
}

TEST(RecordedSchedulesTest, AStateOfAnyOtherStepGoesOnAsIfNeverStopped) {
  for (const auto& [recorded, expected] : records()) {
    auto request = recorded;
    request["state_at"] = (recorded["state_at"].get<int>() * 7 + 13) % 1001;
    const auto whole = schedule_values(request);
    if (!whole.contains("state")) continue;  // it ends before that step
    EXPECT_EQ(resumed_schedule_values(request, whole["state"]), whole) << request;
  }
}

}  // namespace
}  // namespace accel::testing::recorded_schedules_test
