#include "tests/support/property.hpp"

#include <rapidcheck/detail/TestListenerAdapter.h>

#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <optional>
#include <random>
#include <sstream>
#include <stdexcept>
#include <vector>

#include "tests/support/property_seed.hpp"
#include "tests/support/replay_token.hpp"

namespace accel::testing {
namespace {

std::string variable(const char* name, const std::string& otherwise = "") {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

constexpr std::uint64_t kFixedSeed = 20261121;

// Returns nothing if the variable is not set.
std::optional<std::uint64_t> seed_from(const char* name) {
  const auto text = variable(name);
  if (text.empty()) return std::nullopt;
  std::uint64_t seed = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  if (error != std::errc() || end != text.data() + text.size())
    throw std::invalid_argument(std::string(name) + ": expected a number from 0 to 18446744073709551615, got " + text);
  return seed;
}

// ./dev draws one seed for all programs; a program that is started by hand draws its own.
std::uint64_t fresh_seed() {
  if (const auto given = seed_from("ACCEL_FRESH_SEED")) return *given;
  static const auto drawn = [] {
    const std::uint64_t seed = std::random_device()();
    std::cout << "fresh seed of the properties: " << seed << "; ACCEL_FRESH_SEED=" << seed << " repeats this run\n";
    return seed;
  }();
  return drawn;
}

}  // namespace

std::vector<std::uint64_t> property_seeds() {
  if (const auto only = seed_from("ACCEL_PROPERTY_SEED")) return {*only};
  if (num_cases(1) > 1) return {fresh_seed()};
  return {kFixedSeed, fresh_seed()};
}

std::string seed_setting() {
  const auto only = seed_from("ACCEL_PROPERTY_SEED");
  return only ? "ACCEL_PROPERTY_SEED=" + std::to_string(*only) : "ACCEL_FRESH_SEED=" + std::to_string(fresh_seed());
}

}  // namespace accel::testing

namespace accel::testing::detail {
namespace {

namespace fs = std::filesystem;
using rc::detail::FailureResult;
using rc::detail::SuccessResult;
using rc::detail::TestResult;

// Returns the name of the property that the test checks next: the test's name, with "#2" for its second property.
std::string next_property() {
  static std::pair<const ::testing::TestInfo*, ::testing::TimeInMillis> last;
  static int count = 0;
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  // The time distinguishes the runs of a test under --gtest_repeat.
  const std::pair now(test, test->result()->start_timestamp());
  count = std::exchange(last, now) == now ? count + 1 : 1;
  const auto name = std::string(test->test_suite_name()) + "." + test->name();
  return count == 1 ? name : name + "#" + std::to_string(count);
}

// Returns the case that ./dev test --replay asks for.
std::optional<ReplayToken> replayed() {
  const auto text = variable("ACCEL_PROPERTY_REPLAY");
  return text.empty() ? std::nullopt : std::optional(parse_replay_token(text));
}

struct KnownCase {
  ReplayToken token;
  std::string place;  // file and line
};

std::vector<KnownCase> read_known_cases() {
  std::vector<KnownCase> known;
  const auto folder = fs::path(variable("ACCEL_SOURCE_DIR", ".")) / "properties/regressions";
  if (!fs::is_directory(folder)) return known;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".seeds") continue;
    std::ifstream in(entry.path());
    std::string line;
    for (int number = 1; std::getline(in, line); ++number) {
      const auto begin = line.find_first_not_of(" \t");
      if (begin == std::string::npos || line[begin] == '#') continue;
      const auto place = "properties/regressions/" + entry.path().filename().string() + ":" + std::to_string(number);
      try {
        known.push_back({parse_replay_token(line.substr(begin, line.find_first_of(" \t", begin) - begin)), place});
      } catch (const std::invalid_argument& error) {
        throw std::invalid_argument(place + ": " + error.what());
      }
    }
  }
  return known;
}

// The last line of a failure's message. It can be pasted into a shell.
std::string replay_line(const ReplayToken& token) {
  const auto transport = variable("ACCEL_GLOO_TRANSPORT");
  std::string line = transport.empty() ? "" : "ACCEL_GLOO_TRANSPORT=" + transport + " ";
  if (const auto entry = variable("ACCEL_TEST_NAME"); !entry.empty()) {  // this repository's ctest sets it
    const std::string preset = ACCEL_BUILD_PRESET;
    line +=
        "./dev test " + entry + " --replay " + to_string(token) + (preset == "release" ? "" : " --preset " + preset);
  } else {  // a program that was started by hand, or a user's program
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    line += "ACCEL_PROPERTY_REPLAY=" + to_string(token) + " " + fs::read_symlink("/proc/self/exe").string() +
            " --gtest_filter=" + test->test_suite_name() + "." + test->name();
  }
  return line + "  # commit " + variable("ACCEL_COMMIT", "unknown") + ", " ACCEL_BUILD_PRESET ", " ACCEL_BUILD_COMPILER;
}

// Requires that cases can be printed: a counterexample without values helps nobody.
class PrintedCases : public rc::detail::TestListenerAdapter {
 public:
  void onTestCaseFinished(const rc::detail::CaseDescription& description) override {
    if (std::exchange(is_checked_, true)) return;
    for (const auto& [type, value] : description.example()) {
      EXPECT_EQ(value.find("<\?\?\?>"), std::string::npos)
          << "a case prints as " << value << "; define showValue(const " << type << "&, std::ostream&)";
    }
  }

 private:
  bool is_checked_ = false;
};

std::string message_of(const TestResult& result) {
  std::ostringstream message;
  rc::detail::printResultMessage(result, message);
  return message.str();
}

TestResult check(int cases, std::uint64_t seed, bool shrinks, const rc::detail::Property& property) {
  rc::detail::TestParams params;
  params.seed = seed;
  params.maxSuccess = cases;
  params.maxSize = 100;
  params.disableShrinking = !shrinks;
  PrintedCases listener;
  return rc::detail::checkProperty(property, {}, params, listener, {});
}

// Runs one case, or returns nothing if the generator does not produce it.
std::optional<TestResult> check_one(const rc::detail::Reproduce& reproduce, const rc::detail::Property& property) {
  const auto found = rc::shrinkable::walkPath(property(reproduce.random, reproduce.size), reproduce.shrinkPath);
  if (!found) return std::nullopt;
  const auto one = found->value();
  if (one.result.type != rc::detail::CaseResult::Type::Failure)
    return SuccessResult{.numSuccess = 1, .distribution = {}};
  return FailureResult{
      .numSuccess = 0, .description = one.result.description, .reproduce = reproduce, .counterExample = one.example()};
}

void expect_success(const TestResult& result, const std::string& property, const std::string& intro) {
  if (result.is<SuccessResult>()) return;
  std::string end = "repeat with " + seed_setting();
  if (result.is<FailureResult>()) end = replay_line({property, result.get<FailureResult>().reproduce});
  ADD_FAILURE() << intro << message_of(result) << "\n" << end;
}

// Runs the cases of properties/regressions/*.seeds that name this property.
void expect_known_cases(const std::string& name, const rc::detail::Property& property) {
  for (const auto& [token, place] : read_known_cases()) {
    if (token.property != name) continue;
    const auto result = check_one(token.reproduce, property);
    EXPECT_TRUE(result) << place << ": the generator no longer produces this case; write it as a plain test in "
                        << "properties/regressions and delete the line";
    if (result) expect_success(*result, name, place + ": this case fails again\n");
  }
}

}  // namespace

void expect_property(int cases, const rc::detail::Property& property) {
  const auto name = next_property();
  if (const auto token = replayed()) {
    if (token->property != name) return;
    std::cout << "replayed " << name << "\n";  // ./dev looks for this line
    const auto result = check_one(token->reproduce, property);
    EXPECT_TRUE(result) << "this commit's generator does not produce the case of the token; check out the commit that "
                        << "the replay line names";
    if (result) expect_success(*result, name, "");
    return;
  }
  expect_known_cases(name, property);
  ::testing::Test::RecordProperty("property_seed", seed_setting());
  const auto seeds = property_seeds();
  const auto num_seeds = static_cast<int>(seeds.size());
  for (const auto seed : seeds) {
    const auto result = check((num_cases(cases) + num_seeds - 1) / num_seeds, seed, /*shrinks=*/true, property);
    expect_success(result, name, "");
    if (!result.is<SuccessResult>()) return;
  }
}

void expect_property_fails(const std::string& bug, int cases, const rc::detail::Property& property,
                           const std::string& thrown) {
  next_property();
  if (replayed()) return;
  // One seed: whether a bug is found may depend on it, and a fault of the generator must not look like a fresh failure.
  EXPECT_TRUE(check(num_cases(cases), property_seeds().front(), /*shrinks=*/false, property).is<FailureResult>())
      << "not found by an assertion: " << bug
      << (thrown.empty() ? "" : "; cases that ended in an exception do not count, the first one: " + thrown);
}

}  // namespace accel::testing::detail
