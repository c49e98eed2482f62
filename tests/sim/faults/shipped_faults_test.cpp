// The files in configs/sim/faults and the table in sim/faults/README.md: one of each kind, and they say the same.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "reference/config/yaml_file.hpp"
#include "reference/core/errors.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/faults/fault_plan.hpp"

namespace accel::sim {
namespace {

namespace fs = std::filesystem;

fs::path source_dir() { return std::getenv("ACCEL_SOURCE_DIR"); }
fs::path file_of(const FaultRule& rule) {
  return source_dir() / "configs/sim/faults" / (std::string(rule.name) + ".yaml");
}

struct Row {
  std::string outcome, parameters, when;
};

std::map<std::string, Row> rows_of_readme() {
  std::map<std::string, Row> rows;
  std::istringstream lines(read_text((source_dir() / "sim/faults/README.md").string()));
  static const std::regex row(R"(\| `(\w+)` \| (.+) \| (.+) \| (.+) \|)");
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, row)) rows[match[1]] = {match[2], match[3], match[4]};
  }
  return rows;
}

/// The comment at the head of a file, as one line.
std::string comment_of(const fs::path& file) {
  std::istringstream lines(read_text(file.string()));
  std::string comment;
  for (std::string line; std::getline(lines, line) && line.rfind("# ", 0) == 0;)
    comment += (comment.empty() ? "" : " ") + line.substr(2);
  return comment;
}

/// What a kind takes, as the reader tells it: the known keys of a fault that has an unknown one.
std::set<std::string> known_keys(const std::string& entry) {
  try {
    parse_faults("faults: [" + entry + "]\n", "f", 8);
  } catch (const ConfigError& error) {
    static const std::regex known(R"(key; known: (.*))");
    const std::string message = error.what();
    std::smatch match;
    if (!std::regex_search(message, match, known)) return {};
    const auto keys = match[1].str();
    static const std::regex word(R"(\w+)");
    return {std::sregex_token_iterator(keys.begin(), keys.end(), word), std::sregex_token_iterator()};
  }
  return {};
}

/// The names in backquotes outside of brackets.
std::set<std::string> names_in(const std::string& cell) {
  const auto outside = std::regex_replace(cell, std::regex(R"(\([^)]*\))"), "");
  static const std::regex name(R"(`(\w+)`)");
  return {std::sregex_token_iterator(outside.begin(), outside.end(), name, 1), std::sregex_token_iterator()};
}

TEST(ShippedFaultsTest, ThereIsOneFileOfEveryKindAndNoOther) {
  std::set<std::string> files, kinds;
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/sim/faults"))
    files.insert(entry.path().filename().string());
  for (const auto& rule : fault_rules()) kinds.insert(std::string(rule.name) + ".yaml");
  EXPECT_EQ(files, kinds);
}

TEST(ShippedFaultsTest, EveryFileIsOneFaultOfItsKindOnAnyNumberOfRanksFromFour) {
  for (const auto& rule : fault_rules()) {
    for (const int num_ranks : {4, 5, 8, 64, 4096}) {
      const auto plan = plan_faults(read_faults(file_of(rule).string(), num_ranks), num_ranks);
      ASSERT_EQ(plan.size(), 1u) << rule.name;
      EXPECT_EQ(rule_of(plan[0].kind).name, rule.name);
    }
  }
}

TEST(ShippedFaultsTest, EveryFileSaysWhatTheReadmeSays) {
  const auto rows = rows_of_readme();
  EXPECT_EQ(rows.size(), fault_rules().size());
  for (const auto& rule : fault_rules()) EXPECT_EQ(comment_of(file_of(rule)), rows.at(std::string(rule.name)).outcome);
}

TEST(ShippedFaultsTest, TheReadmeNamesWhatEveryKindTakes) {
  const auto rows = rows_of_readme();
  for (const auto& rule : fault_rules()) {
    const std::string name(rule.name);
    auto keys = known_keys("{kind: " + name + ", unknown: 1}");
    for (const auto* common : {"kind", "stream"}) EXPECT_EQ(keys.erase(common), 1u) << name;
    const bool has_when = keys.erase("when") == 1;
    EXPECT_EQ(names_in(rows.at(name).parameters), keys) << name;
    const auto units = has_when ? known_keys("{kind: " + name + ", when: {unknown: 1}}") : std::set<std::string>{};
    EXPECT_EQ(names_in(rows.at(name).when), units) << name;
  }
}

TEST(ShippedFaultsTest, TheReadmeNamesTheDefaults) {
  const auto rows = rows_of_readme();
  const auto expect_default = [&](const FaultRule& rule, const std::string& parameter,
                                  const std::optional<double>& value) {
    if (!value) return;
    EXPECT_THAT(rows.at(std::string(rule.name)).parameters,
                ::testing::HasSubstr(fmt::format("`{}` ({})", parameter, *value)));
  };
  for (const auto& rule : fault_rules()) {
    expect_default(rule, "seconds", rule.seconds);
    expect_default(rule, "factor", rule.factor);
    expect_default(rule, "probability", rule.probability);
  }
}

TEST(ShippedFaultsTest, TheExampleOfTheReadmeIsAFaultFile) {
  const auto readme = read_text((source_dir() / "sim/faults/README.md").string());
  const auto begin = readme.find("```yaml\n") + 8;
  EXPECT_EQ(
      plan_faults(parse_faults(readme.substr(begin, readme.find("```", begin) - begin), "README.md", 4), 4).size(), 4u);
}

}  // namespace
}  // namespace accel::sim
