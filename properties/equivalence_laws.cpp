// The equivalences for which this project exists: sharding, the duplicates of even_batches, gather_for_metrics, the
// synchronization of random streams, and complete trainings are the same on every backend. Here simulated ranks that
// run in parallel are compared with those that run one at a time, and with Gloo between threads;
// tests/programs/equivalence_test.cpp compares them with Gloo between processes.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "sim/programs/equivalence/case_operations.hpp"
#include "sim/programs/equivalence/checked_group.hpp"
#include "sim/programs/equivalence/equivalence_record.hpp"
#include "sim/programs/equivalence/simulated_case.hpp"
#include "tests/support/artifacts.hpp"
#include "tests/support/property.hpp"
#include "tests/support/property_seed.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::equivalence_laws {
namespace {

using programs::Choices;
using programs::EquivalenceCase;
using programs::EquivalenceRecord;
using programs::RankObservations;

// RapidCheck shrinks the numbers, and smaller numbers make a simpler case.
EquivalenceCase draw(const std::string& law, int max_ranks) {
  const auto numbers = *rc::gen::container<std::vector<std::uint32_t>>(
      Choices::kCount, rc::gen::resize(rc::kNominalSize, rc::gen::inRange<std::uint32_t>(0, Choices::kEnd)));
  auto one = draw_case(law, Choices(numbers), {.smallest = 1, .largest = max_ranks});
  RC_LOG(to_json(one));
  return one;
}

RankObservations on_gloo_threads(const EquivalenceCase& one) {
  return programs::observe_stages(one, [&](int ranks, const std::function<void(RankContext&)>& body) -> std::string {
    try {
      run_ranks(Backend::kGlooThreads, ranks, body);
      return "";
    } catch (const std::exception& error) {
      return programs::message_without_frames(error);
    }
  });
}

// Compares the two sides of the record on generated cases; `difference` is "" if a case is equal. The record counts the
// cases up to the first difference, without those that make it smaller.
EquivalenceRecord compare(EquivalenceRecord record, int cases, const std::function<EquivalenceCase()>& draw_one,
                          const std::function<std::string(const EquivalenceCase&)>& difference) {
  record.limits = {.largest = 16};
  record.seed = property_seeds().back();
  record.command = fmt::format("{} ./dev test {}equivalence_laws", seed_setting(), num_cases(1) > 1 ? "--long " : "");
  expect_property(cases, [&] {
    const auto one = draw_one();
    const bool is_shrinking = record.differences > 0;
    if (!is_shrinking) record.count(one);
    record.differences = 1;  // also if an exception ends the case
    RC_ASSERT(difference(one) == "");
    if (!is_shrinking) record.differences = 0;
  });
  return record;
}

// Leaves the record among the artifacts.
EquivalenceRecord expect_equal(const EquivalenceRecord& sides, int cases,
                               const std::function<EquivalenceCase()>& draw_one,
                               const std::function<std::string(const EquivalenceCase&)>& difference) {
  const auto path = artifact_path("equivalence/" + file_name(sides));
  if (path) std::filesystem::remove(*path);  // a run that crashes must not leave the record of an earlier one
  auto record = compare(sides, cases, draw_one, difference);
  if (path && record.cases > 0) write_record(path->string(), record);
  return record;
}

// Two errors are equal, too, so that only few cases may end in one. No case may fail, see kFailed.
void expect_equal_schedules(const std::string& law) {
  int num_errors = 0;
  const auto draw_one = [&] {
    const bool is_long = num_cases(1) > 1;
    return draw(law, /*max_ranks=*/is_long && pick(0, 10) == 0 ? 64 : 16);
  };
  const auto compared =
      expect_equal({.law = law, .left = "simulated, parallel", .right = "simulated, one at a time"}, 200, draw_one,
                   [&](const EquivalenceCase& one) {
                     const auto parallel = observe_on_simulated_ranks(one),
                                serial = observe_on_simulated_ranks(one, {.schedule = serial_schedule_of(one)});
                     if (programs::has_failed(parallel)) return parallel.front().back();
                     const auto& last = parallel.front().empty() ? std::string() : parallel.front().back();
                     num_errors += last.starts_with("error: ") ? 1 : 0;
                     return programs::first_difference("parallel", parallel, "serial", serial);
                   });
  ::testing::Test::RecordProperty("errors", num_errors);
  EXPECT_LE(100 * num_errors, 3 * compared.cases)
      << num_errors << " of " << compared.cases << " cases ended in an error";
}

void expect_equal_on_gloo_threads(const std::string& law) {
  expect_equal(
      {.law = law, .left = "simulated, parallel", .right = "Gloo threads"}, 60,
      [&] { return draw(law, /*max_ranks=*/6); },
      [](const EquivalenceCase& one) {
        const auto simulated = observe_on_simulated_ranks(one);
        if (programs::has_failed(simulated)) return simulated.front().back();
        return programs::first_difference("simulated", simulated, "Gloo", on_gloo_threads(one));
      });
}

class EquivalenceLaws : public ::testing::TestWithParam<const char*> {};

TEST_P(EquivalenceLaws, SimulatedRanksObserveTheSameUnderEverySchedule) { expect_equal_schedules(GetParam()); }
TEST_P(EquivalenceLaws, GlooThreadsObserveWhatSimulatedRanksObserve) { expect_equal_on_gloo_threads(GetParam()); }

INSTANTIATE_TEST_SUITE_P(All, EquivalenceLaws, ::testing::ValuesIn(programs::kLaws),
                         [](const auto& law) { return std::string(law.param); });

// --- the generator --------------------------------------------------------------------------------------------------

struct Counts {
  int cases = 0, larger_batches = 0, empty = 0;
  std::map<int, int> of_ranks;
  std::map<std::string, std::map<std::string, int>> of_dimensions;
};

// Always the same cases, since shares of drawn ones vary.
void for_each_case(const std::string& law, int cases, const std::function<void(const EquivalenceCase&)>& visit) {
  std::mt19937 generator(5);
  for (int number = 0; number < cases; ++number) {
    std::vector<std::uint32_t> numbers(Choices::kCount);
    for (auto& drawn : numbers) drawn = generator() % Choices::kEnd;
    visit(draw_case(law, Choices(std::move(numbers)), {.smallest = 1, .largest = 16}));
  }
}

Counts count_cases(const std::string& law) {
  Counts counts;
  for_each_case(law, 4000, [&](const EquivalenceCase& one) {
    ++counts.cases;
    counts.larger_batches += one.batch_size > 1 ? 1 : 0;
    counts.empty += one.length == 0 || (one.drop_last && one.num_ordered() < one.step_size()) ? 1 : 0;
    ++counts.of_ranks[one.ranks];
    for (const auto& [dimension, value] : programs::dimensions_of(one)) ++counts.of_dimensions[dimension][value];
  });
  return counts;
}

// Without these floors a law could hold because its cases never reach what it is about.
TEST_P(EquivalenceLaws, CasesReachWhatTheLawIsAbout) {
  auto counts = count_cases(GetParam());
  const auto percent = [&](int count) { return 100.0 * count / counts.cases; };
  EXPECT_GE(percent(counts.of_dimensions.at("padding").at("true")), 40);
  EXPECT_GE(percent(counts.larger_batches), 70);
  EXPECT_LE(percent(counts.empty), 3);
  EXPECT_EQ(counts.of_ranks.size(), 16U);
  for (const auto& [ranks, count] : counts.of_ranks) EXPECT_GE(percent(count), 5) << ranks << " ranks";
  EXPECT_EQ(counts.of_dimensions["source"].size(), std::size(programs::kCaseSources) + 1);
  for (const auto& [source, count] : counts.of_dimensions["source"]) EXPECT_GE(percent(count), 3) << source;
  EXPECT_EQ(counts.of_dimensions["operation"].size(), programs::operations_of(GetParam()).size());
  for (const auto& [operation, count] : counts.of_dimensions["operation"]) EXPECT_GE(percent(count), 3) << operation;
  const std::map<std::string, std::size_t> num_values{{"interruption", std::size(programs::kInterruptions)},
                                                      {"before_epochs", std::size(programs::kBeforeEpochs)},
                                                      {"second_loader", 5},
                                                      {"length", 6},
                                                      {"interrupted_after", 6},
                                                      {"interruptions", 3},
                                                      {"resumed_ranks", 4},
                                                      {"order", 2},
                                                      {"rng_types", 4}};
  for (const auto& [dimension, count] : num_values)
    EXPECT_EQ(counts.of_dimensions[dimension].size(), count) << dimension;
  for (const auto& [dimension, of_values] : counts.of_dimensions) {
    for (const auto& [value, count] : of_values) EXPECT_GE(percent(count), 0.5) << dimension << " " << value;
  }
}

// The record's numbers are of pairs that cases can have, so a run with enough cases has nearly all of them.
TEST_P(EquivalenceLaws, CasesCoverThePairsOfValues) {
  EquivalenceRecord record{.law = GetParam(), .limits = {.largest = 16}};
  for_each_case(GetParam(), 4000, [&](const EquivalenceCase& one) { record.count(one); });
  const auto possible = programs::possible_pairs(GetParam(), record.limits);
  EXPECT_GE(possible.num_pairs(), 3500);
  EXPECT_LE(possible.missing_in(record.pairs).size(), possible.num_pairs() / 20)
      << ::testing::PrintToString(possible.missing_in(record.pairs));
}

TEST(EquivalenceCaseTest, CaseIsReadAsItWasWritten) {
  for (const auto* law : programs::kLaws) {
    expect_property(200, [&] {
      const auto one = draw(law, 16);
      const auto text = to_json(one);
      const auto read = programs::read_case(text);
      RC_ASSERT(to_json(read) == text);
      RC_ASSERT(programs::dimensions_of(read) == programs::dimensions_of(one));
    });
  }
}

TEST(EquivalenceCaseTest, WrongCaseIsRejectedWithAllProblems) {
  try {
    programs::read_case(R"({"length": -1, "batch_size": 2, "ranks": 2, "law": "all", "operations": ["gathre"]})");
    FAIL() << "expected a ConfigError";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::AllOf(::testing::HasSubstr("length"), ::testing::HasSubstr("law"),
                                               ::testing::HasSubstr("gathre")));
  }
}

TEST(EquivalenceRecordTest, CountsTheCasesUpToTheFirstDifference) {
  EquivalenceRecord record{.law = "sharding", .left = "a", .right = "planted"};
  EXPECT_NONFATAL_FAILURE(
      {
        record = compare(
            record, 100, [] { return draw("sharding", 16); },
            [&, number = 0](const EquivalenceCase&) mutable { return ++number < 7 ? "" : "other"; });
      },
      "Falsifiable");
  EXPECT_EQ(record.cases, 7);
  EXPECT_EQ(record.differences, 1);
  int of_source = 0;
  for (const auto& [cell, cases] : record.of_cells) of_source += std::get<1>(cell) == "source" ? cases : 0;
  EXPECT_EQ(of_source, 7);
}

TEST(EquivalenceCaseTest, DifferenceNamesRankObservationAndBothSides) {
  const RankObservations left{{"a", "b"}, {"a", "c"}}, right{{"a", "b"}, {"a", "d"}}, shorter{{"a", "b"}, {"a"}};
  EXPECT_EQ(programs::first_difference("x", left, "y", left), "");
  EXPECT_EQ(programs::first_difference("x", left, "y", right), "rank 1, observation 1:\n  x: c\n  y: d");
  EXPECT_EQ(programs::first_difference("x", left, "y", shorter), "rank 1, observation 1:\n  x: c\n  y: nothing");
}

TEST(EquivalenceCaseTest, OnlyLossesAndParametersMayDifferByRounding) {
  const std::string line = "loss [0.25] parameters 2[1e-08, 0.5] ";
  EXPECT_TRUE(programs::equal_up_to_rounding(line, "loss [0.250001] parameters 2[-1e-08, 0.5] "));
  EXPECT_FALSE(programs::equal_up_to_rounding(line, "loss [0.2501] parameters 2[1e-08, 0.5] "));
  EXPECT_FALSE(programs::equal_up_to_rounding(line, "loss [0.25] parameters 2[1e-08, 0.5, 0.5] "));
  EXPECT_FALSE(programs::equal_up_to_rounding(line, "loss [0.25] parameters 2[1e-08, nan] "));
  EXPECT_FALSE(programs::equal_up_to_rounding("loss [nan]", "loss [0.25]"));
  EXPECT_FALSE(programs::equal_up_to_rounding("loss [nan]", "loss [nan] "));
  EXPECT_FALSE(programs::equal_up_to_rounding("step 0: [0.25]", "step 0: [0.250001]"));
}

}  // namespace
}  // namespace accel::testing::equivalence_laws
