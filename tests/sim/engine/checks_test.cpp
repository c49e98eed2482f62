// The table of checks, what --check sets, and what each level does with what a check finds.
#include "sim/engine/checks.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/core/errors.hpp"
#include "sim/engine/world.hpp"
#include "tests/sim/engine/small_collectives.hpp"
#include "tests/support/message_of.hpp"

namespace accel::sim {
namespace {

using accel::testing::message_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ChecksTest, EveryCheckIsFoundByItsName) {
  for (const auto& traits : check_traits()) {
    EXPECT_EQ(check_traits()[static_cast<std::size_t>(check_named(traits.name))].name, traits.name);
    EXPECT_EQ(CheckLevels()[check_named(traits.name)], traits.level);
  }
}

TEST(ChecksTest, LevelsOfOneTextAreSetAndTheOthersKept) {
  const auto levels = check_levels("races=finding,replicas=off,lost_nan=error");
  EXPECT_EQ(levels[Check::kRaces], CheckLevel::kFinding);
  EXPECT_EQ(levels[Check::kReplicas], CheckLevel::kOff);
  EXPECT_EQ(levels[Check::kLostNan], CheckLevel::kError);
  EXPECT_EQ(levels[Check::kGenerators], CheckLevel::kFinding);
  EXPECT_EQ(check_levels("races=off,races=finding")[Check::kRaces], CheckLevel::kFinding) << "the last counts";
  EXPECT_EQ(check_levels("calls=error")[Check::kCalls], CheckLevel::kError);
}

TEST(ChecksTest, AllProblemsOfATextAreToldAtOnce) {
  const auto message = message_of<ConfigError>([] { check_levels("race=off,races=warn,calls=off,,replicas"); });
  EXPECT_THAT(message, AllOf(HasSubstr("unknown check 'race'; expected one of: calls, replicas, races"),
                             HasSubstr("NAME=off, got 'races=warn'"), HasSubstr("calls: is always an error"),
                             HasSubstr("got ''"), HasSubstr("got 'replicas'")));
}

struct Reported {
  bool has_ended = false;
  std::string error;
  std::vector<std::string> findings;
};

Reported report_at(CheckLevel level) {
  WorldOptions options{.num_ranks = 2};
  options.checks.set(Check::kGenerators, level);
  World world(std::move(options));
  Reported reported;
  try {
    run_ranks(world, [&](int rank) {
      if (rank == 0) reported.has_ended = world.report(Check::kGenerators, "they differ");
      all_sum(world, *world.group("world", first_ranks(2)), rank, 1);
    });
  } catch (const RunError& error) {
    reported.error = error.diagnosis() != nullptr ? error.diagnosis()->text : "";
  }
  reported.findings = world.failures().findings();
  return reported;
}

TEST(ChecksTest, AnErrorEndsTheRunOnEveryRank) {
  const auto reported = report_at(CheckLevel::kError);
  EXPECT_TRUE(reported.has_ended);
  EXPECT_EQ(reported.error, "they differ [generators]");
  EXPECT_THAT(reported.findings, IsEmpty());
}

TEST(ChecksTest, AFindingIsToldAndTheRunGoesOn) {
  const auto reported = report_at(CheckLevel::kFinding);
  EXPECT_FALSE(reported.has_ended);
  EXPECT_EQ(reported.error, "");
  EXPECT_THAT(reported.findings, ElementsAre("they differ [generators]"));
}

TEST(ChecksTest, WhatIsOffIsNotTold) {
  const auto reported = report_at(CheckLevel::kOff);
  EXPECT_FALSE(reported.has_ended);
  EXPECT_EQ(reported.error, "");
  EXPECT_THAT(reported.findings, IsEmpty());
}

}  // namespace
}  // namespace accel::sim
