// Failures of properties: their message, seeds, replays, known cases, planted bugs.
#include "tests/support/property.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest-spi.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>

#include "tests/support/replay_token.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

// Sets a variable of the environment for a scope.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    setenv(name, value.c_str(), /*overwrite=*/1);
  }
  ~Variable() {
    if (old_) {
      setenv(name_, old_->c_str(), /*overwrite=*/1);
    } else {
      unsetenv(name_);
    }
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> old_;
};

// Returns the messages of the failures that `check` reports.
std::vector<std::string> failures_of(const std::function<void()>& check) {
  ::testing::TestPartResultArray results;
  {
    const ::testing::ScopedFakeTestPartResultReporter reporter(
        ::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD, &results);
    check();
  }
  std::vector<std::string> messages;
  for (int i = 0; i < results.size(); ++i) messages.emplace_back(results.GetTestPartResult(i).message());
  return messages;
}

// Fails for numbers of 1,000 and more, and records the numbers that it is called with.
struct Below1000 {
  std::vector<int>& seen;
  void operator()() const {
    seen.push_back(pick(0, 100'000));
    RC_ASSERT(seen.back() < 1000);
  }
};

// Some versions of GoogleTest end a message with an empty line.
std::string last_line(const std::string& message) {
  const auto text = message.substr(0, message.find_last_not_of('\n') + 1);
  return text.substr(text.rfind('\n') + 1);
}

// The token of a message, made to name another property.
std::string token_in(const std::string& message, const std::string& property) {
  std::smatch match;
  EXPECT_TRUE(std::regex_search(message, match, std::regex("(?:--replay |_REPLAY=)[^ :]+(:[^ ]+)"))) << message;
  return property + match[1].str();
}

TEST(PropertyTest, AFailureEndsInALineThatReplaysTheShrunkCase) {
  const Variable commit("ACCEL_COMMIT", "abc123"), name("ACCEL_TEST_NAME", "some_laws");
  std::vector<int> seen;
  const auto failures = failures_of([&] { expect_property(100, Below1000{seen}); });
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_THAT(last_line(failures[0]),
              MatchesRegex("\\./dev test some_laws --replay "
                           "PropertyTest\\.AFailureEndsInALineThatReplaysTheShrunkCase:[-_A-Za-"
                           "z0-9]+( --preset [a-z]+)?( --torch [0-9.]+)?  # commit abc123, .+"));
  const auto tried = seen.size();
  EXPECT_GT(tried, 1U) << "the case was shrunk";
  seen.clear();
  const Variable replay("ACCEL_PROPERTY_REPLAY",
                        token_in(failures[0], "PropertyTest.AFailureEndsInALineThatReplaysTheShrunkCase#2"));
  const auto again = failures_of([&] { expect_property(100, Below1000{seen}); });
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(seen.back(), 1000) << "the smallest number that fails";
  EXPECT_EQ(token_in(again[0], ""), token_in(failures[0], ""));
  seen.clear();
  expect_property(100, Below1000{seen});  // the token names the second property only
  EXPECT_TRUE(seen.empty());
}

TEST(PropertyTest, AProgramThatCtestDoesNotRunIsReplayedByItsOwnCommand) {
  const Variable name("ACCEL_TEST_NAME", "");
  std::vector<int> seen;
  const auto failures = failures_of([&] { expect_property(100, Below1000{seen}); });
  ASSERT_EQ(failures.size(), 1U);
  const std::string test = "PropertyTest.AProgramThatCtestDoesNotRunIsReplayedByItsOwnCommand";
  EXPECT_THAT(last_line(failures[0]), StartsWith("ACCEL_PROPERTY_REPLAY=" + test + ":"));
  EXPECT_THAT(last_line(failures[0]), HasSubstr("/property_test --gtest_filter=" + test + "  # commit "));
}

TEST(PropertyTest, AReplayedCaseThatIsFixedPasses) {
  std::vector<int> seen;
  const auto failures = failures_of([&] { expect_property(100, Below1000{seen}); });
  ASSERT_EQ(failures.size(), 1U);
  const Variable replay("ACCEL_PROPERTY_REPLAY",
                        token_in(failures[0], "PropertyTest.AReplayedCaseThatIsFixedPasses#2"));
  expect_property(100, [] { RC_ASSERT(pick(0, 100'000) < 100'000); });
}

TEST(PropertyTest, CasesOfTheSeedFilesRunFirst) {
  std::vector<int> seen;
  const auto failures = failures_of([&] { expect_property(100, Below1000{seen}); });
  ASSERT_EQ(failures.size(), 1U);
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path("properties/regressions"));
  std::ofstream(folder.path("properties/regressions/numbers.seeds"))
      << "# numbers\n"
      << token_in(failures[0], "PropertyTest.CasesOfTheSeedFilesRunFirst#2") << "  # once failed at 1,000\n"
      << token_in(failures[0], "PropertyTest.Another") << "\n";
  const Variable source_dir("ACCEL_SOURCE_DIR", folder.path(""));
  seen.clear();
  // No generated case runs, so the failure can only be the known one.
  const auto again = failures_of([&] { expect_property(0, Below1000{seen}); });
  ASSERT_EQ(again.size(), 1U);
  EXPECT_THAT(again[0], HasSubstr("properties/regressions/numbers.seeds:2: this case fails again"));
  EXPECT_EQ(seen.back(), 1000);
}

TEST(PropertyTest, TheSeedSelectsTheCases) {
  const auto cases = [](const char* seed) {
    const Variable variable("ACCEL_PROPERTY_SEED", seed);
    std::vector<int> seen;
    expect_property(20, [&] { seen.push_back(pick(0, 1'000'000)); });
    return seen;
  };
  EXPECT_EQ(cases("1"), cases("1"));
  EXPECT_NE(cases("1"), cases("2"));
  EXPECT_THROW(cases("one"), std::invalid_argument);
}

TEST(PropertyTest, AFixedSeedAndAFreshOneAreTried) {
  const Variable only("ACCEL_PROPERTY_SEED", ""), budget("ACCEL_TEST_BUDGET", "");
  const auto cases = [](const char* seed) {
    const Variable variable("ACCEL_FRESH_SEED", seed);
    std::vector<int> seen;
    expect_property(40, [&] { seen.push_back(pick(0, 1'000'000)); });
    return seen;
  };
  const auto one = cases("1"), other = cases("2");
  ASSERT_EQ(one.size(), 40U);
  EXPECT_TRUE(std::equal(one.begin(), one.begin() + 20, other.begin()));
  EXPECT_FALSE(std::equal(one.begin() + 20, one.end(), other.begin() + 20));
  EXPECT_EQ(cases("1"), one);
}

TEST(PropertyTest, APlantedBugIsFoundByAnAssertionNotByAnException) {
  expect_property_fails("none", 100, [] { RC_ASSERT(pick(0, 3) != 2); });
  const auto failures =
      failures_of([] { expect_property_fails("a crash", 100, [] { throw std::runtime_error("no such file"); }); });
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_THAT(failures[0], HasSubstr("not found by an assertion: a crash"));
  EXPECT_THAT(failures[0], HasSubstr("no such file"));
}

struct Unprintable {
  int number = 0;
};

TEST(PropertyTest, ACaseMustBePrintable) {
  const Variable seed("ACCEL_PROPERTY_SEED", "1");
  const auto failures = failures_of([] {
    expect_property(5, [] { *rc::gen::map(rc::gen::just(1), [](int number) { return Unprintable{number}; }); });
  });
  ASSERT_EQ(failures.size(), 1U);
  EXPECT_THAT(failures[0], HasSubstr("define showValue"));
}

TEST(ReplayTokenTest, ATextThatIsNoTokenIsRejected) {
  for (const auto* text : {"", "Laws.Test", "Laws.Test:", "Laws.Test:AAAA", ":AAAA", "Laws.Test:a b"})
    EXPECT_THROW(parse_replay_token(text), std::invalid_argument) << text;
}

}  // namespace
}  // namespace accel::testing
