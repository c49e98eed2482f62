// The files in configs/sim/faults and the tables in sim/faults/README.md agree with the tables of kinds and
// parameters in the source. These tests keep them equal.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "reference/config/yaml_reader.hpp"
#include "sim/faults/fault_file.hpp"
#include "sim/faults/fault_parameters.hpp"
#include "sim/faults/fault_plan.hpp"

namespace accel::sim {
namespace {

namespace fs = std::filesystem;

fs::path source_dir() { return std::getenv("ACCEL_SOURCE_DIR"); }
fs::path file_of(const FaultRule& rule) {
  return source_dir() / "configs/sim/faults" / (std::string(rule.name) + ".yaml");
}

constexpr auto kReadme = "sim/faults/README.md";

std::string text_of(const fs::path& file) { return read_text((source_dir() / file).string()); }

/// Returns a parameter's name together with its default.
struct Cell {
  const FaultRule& rule;
  const FaultParameter& parameter;

  std::string operator()(const NumberForm&) const {
    const auto value = rule.default_of(parameter.parameter);
    return value ? fmt::format("`{}` ({})", parameter.name, *value) : fmt::format("`{}`", parameter.name);
  }
  template <typename Enum>
  std::string operator()(const ChoiceForm<Enum>& form) const {
    return form.draw ? fmt::format("`{}` (`{}`)", parameter.name, fmt::join(form.names, "`, `"))
                     : fmt::format("`{}` (`{}`; `{}`)", parameter.name, fmt::join(form.names, "` or `"), form.names[0]);
  }
  std::string operator()(const auto& /*form*/) const { return fmt::format("`{}`", parameter.name); }
};

// The row of the README's table for a kind of fault, generated from the rules.
std::string row_of(const FaultRule& rule) {
  std::vector<std::string> parameters, when;
  if (rule.has(FaultRule::kRank)) parameters.emplace_back(rule.every_rank ? "`rank` (absent: every rank)" : "`rank`");
  if (rule.has(FaultRule::kLink)) parameters.emplace_back("`link`");
  if (rule.has(FaultRule::kRanks)) parameters.emplace_back("`ranks` (one side)");
  for (const auto& parameter : kFaultParameters) {
    if (rule.has(parameter.parameter)) parameters.push_back(std::visit(Cell{rule, parameter}, parameter.form));
  }
  if (rule.has(FaultRule::kStep)) when.emplace_back("`step`");
  if (rule.has(FaultRule::kCollective)) when.emplace_back("`collective`");
  if (when.empty()) when.emplace_back("always");
  return fmt::format("| `{}` | {} | {} | {} |\n", rule.name, rule.sees, fmt::join(parameters, ", "),
                     fmt::join(when, ", "));
}

/// Returns the text with the rows of the table under this header replaced.
std::string with_table(const std::string& text, const std::string& header, const std::string& rows) {
  const auto begin = text.find('\n', text.find("\n|---", text.find(header)) + 1) + 1;
  const auto end = text.find("\n\n", begin - 1);
  return text.substr(0, begin) + rows + (end == std::string::npos ? "" : text.substr(end + 1));
}

/// Returns the README with the tables that follow from kinds and parameters.
std::string expected_readme() {
  std::string kinds, parameters;
  for (const auto& rule : kFaultRules) kinds += row_of(rule);
  for (const auto& [flag, name, form, meaning] : kFaultParameters)
    parameters += fmt::format("| `{}` | {} | {} |\n", name, meaning, allowed_values(form));
  return with_table(with_table(text_of(kReadme), "| kind |", kinds), "| parameter |", parameters);
}

/// Returns the comment at the top of a file, as one line.
std::string comment_of(const fs::path& file) {
  std::istringstream lines(read_text(file.string()));
  std::string comment;
  for (std::string line; std::getline(lines, line) && line.rfind("# ", 0) == 0;)
    comment += (comment.empty() ? "" : " ") + line.substr(2);
  return comment;
}

// The files are the examples that users start from; a new kind must come with one.
TEST(ShippedFaultsTest, EveryKindHasOneFileAndThereAreNoOthers) {
  std::set<std::string> files, kinds;
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/sim/faults"))
    files.insert(entry.path().filename().string());
  for (const auto& rule : kFaultRules) kinds.insert(std::string(rule.name) + ".yaml");
  EXPECT_EQ(files, kinds);
}

// The files are used in tests and demonstrations with various numbers of ranks.
TEST(ShippedFaultsTest, EveryFileIsOneFaultOfItsKindOnFourOrMoreRanks) {
  for (const auto& rule : kFaultRules) {
    for (const int num_ranks : {4, 5, 8, 64, 4096}) {
      const auto plan = plan_faults(read_faults(file_of(rule).string(), num_ranks), num_ranks);
      ASSERT_EQ(plan.size(), 1u) << rule.name;
      EXPECT_EQ(rule_of(plan[0].kind).name, rule.name);
    }
  }
}

// The comment in the file is the text of the rule, wrapped by hand.
TEST(ShippedFaultsTest, EveryFileBeginsWithItsEffectOnEveryRank) {
  for (const auto& rule : kFaultRules) EXPECT_EQ(comment_of(file_of(rule)), rule.sees);
}

// With ACCEL_UPDATE_DOCS=1 this writes the tables instead of comparing them.
TEST(ShippedFaultsTest, TheReadmesTablesFollowFromTheKindsAndTheirParameters) {
  const auto expected = expected_readme();
  if (std::getenv("ACCEL_UPDATE_DOCS") != nullptr) std::ofstream(source_dir() / kReadme) << expected;
  EXPECT_EQ(text_of(kReadme), expected);
}

// Users copy it.
TEST(ShippedFaultsTest, TheExampleInTheReadmeIsAFaultFile) {
  const auto readme = text_of(kReadme);
  const auto begin = readme.find("```yaml\n") + 8;
  EXPECT_EQ(
      plan_faults(parse_faults(readme.substr(begin, readme.find("```", begin) - begin), "README.md", 4), 4).size(), 4u);
}

}  // namespace
}  // namespace accel::sim
