// Structs with many fields list them before the definition and have a setter for each: a designated initializer in
// another order than that of the fields does not compile.
#include <gmock/gmock.h>

#include <map>
#include <regex>
#include <set>

#include "tests/architecture/sources.hpp"

namespace accel::testing {
namespace {

constexpr std::size_t kMostFieldsWithoutSetters = 6;

// Filled in by the library, not by programs.
const std::set<std::string> kInternal{"FlatParameterOptions", "LaunchConfig",    "ReadersOptions", "ResolvedPlugin",
                                      "ShardPlanOptions",     "ShardingOptions", "WorldOptions"};

struct Struct {
  std::string name = {};
  std::string comment = {};  // directly before it
  std::string body = {};     // without comments
};

std::string replaced(const std::string& text, const char* pattern, const char* by) {
  return std::regex_replace(text, std::regex(pattern), by);
}

std::vector<Struct> structs_of(const std::string& text) {
  std::vector<Struct> structs;
  std::string comment;
  for (const auto& line : split_lines(text)) {
    static const std::regex kBegin(R"(struct (\w+)( : .*)? \{)");
    std::smatch match;
    if (!structs.empty() && structs.back().comment == "open") {
      if (line == "};") {
        structs.back().comment = std::exchange(comment, "");
      } else {
        structs.back().body += replaced(line, "//.*", "") + "\n";
      }
    } else if (std::regex_match(line, match, kBegin)) {
      structs.push_back({.name = match[1], .comment = "open"});
    } else {
      comment = line.starts_with("///") ? comment + line.substr(3) : "";
    }
  }
  return structs;
}

// The text without what is inside brackets; parameters become "@".
std::string flat(std::string text) {
  for (std::string before; before != text;) {
    before = text;
    text = replaced(text, R"(\([^()]*\))", "@");
    text = replaced(text, R"((@ *(const)? *)\{[^{}]*\})", "$1;");
    text = replaced(text, R"(\{[^{}]*\}|<[^<>]*>)", "");
  }
  return text;
}

std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  static const std::regex kName(R"(\w+)");
  for (std::sregex_iterator name(list.begin(), list.end(), kName), end; name != end; ++name)
    names.push_back(name->str());
  return names;
}

std::vector<std::string> fields_of(const Struct& type) {
  std::vector<std::string> fields;
  const auto body = flat(replaced(type.body, R"(ACCEL_SETTERS\([^)]*\);)", ""));
  static const std::regex kNoField(R"(\s*(friend|static|using|const|struct|enum|template|explicit)\b[\s\S]*)");
  static const std::regex kFunction(R"([^=]*@[\s\S]*)");
  static const std::regex kField(R"((\w+)\s*(=[^,]*)?(,|$))");
  std::istringstream statements(body);
  for (std::string statement; std::getline(statements, statement, ';');) {
    if (std::regex_match(statement, kNoField) || std::regex_match(statement, kFunction)) continue;
    for (std::sregex_iterator field(statement.begin(), statement.end(), kField), end; field != end; ++field)
      fields.push_back((*field)[1]);
  }
  return fields;
}

std::vector<std::string> setters_of(const Struct& type) {
  std::smatch match;
  const bool found = std::regex_search(type.body, match, std::regex(R"(ACCEL_SETTERS\(([^)]*)\);)"));
  return found ? names_in(match[1]) : std::vector<std::string>();
}

std::vector<std::string> documented_order(const Struct& type) {
  std::smatch match;
  const bool found = std::regex_search(type.comment, match, std::regex(R"(Fields, in this order: ([^.]*)\.$)"));
  return found ? names_in(match[1]) : std::vector<std::string>();
}

std::vector<std::string> faults_of(const std::string& text) {
  std::vector<std::string> faults;
  for (const auto& type : structs_of(text)) {
    static const std::regex kOptions(R"(\w+(Options|Kwargs|Plugin|Config|Configuration))");
    if (!std::regex_match(type.name, kOptions) || kInternal.contains(type.name)) continue;
    const auto fields = fields_of(type);
    if (fields.size() <= kMostFieldsWithoutSetters) continue;
    if (setters_of(type) != fields) faults.push_back(type.name + ": ACCEL_SETTERS differs from the fields");
    if (documented_order(type) != fields) faults.push_back(type.name + ": the comment's order differs from the fields");
  }
  return faults;
}

TEST(OptionsOrderTest, StructsWithManyFieldsHaveSettersAndListTheirOrder) {
  std::size_t num_checked = 0;
  for (const auto& file : sources_below({"reference", "sim/backend", "tests/public"})) {
    if (!file.ends_with(".hpp")) continue;
    const auto text = text_of(file);
    EXPECT_THAT(faults_of(text), ::testing::IsEmpty()) << file;
    for (const auto& type : structs_of(text)) num_checked += setters_of(type).empty() ? 0 : 1;
  }
  EXPECT_GE(num_checked, 23U);
}

TEST(OptionsOrderTest, AFieldWithoutSetterIsNoticed) {
  const std::string begin =
      "/// Fields, in this order: a, b, c, d, e, f, g.\nstruct XOptions {\n  int a = 1, b = {};\n"
      "  std::map<int, int> c = {{1, 2}};  ///< c, d\n  int d, e, f;\n"
      "  [[nodiscard]] int h() const { return a; }\n  int g = 0;\n";
  EXPECT_THAT(faults_of(begin + "  ACCEL_SETTERS(a, b, c, d, e, f, g);\n};\n"), ::testing::IsEmpty());
  EXPECT_THAT(faults_of(begin + "  ACCEL_SETTERS(a, b, c, d, e, f);\n};\n"),
              ::testing::ElementsAre("XOptions: ACCEL_SETTERS differs from the fields"));
  EXPECT_THAT(faults_of(begin + "  int i = 0;\n  ACCEL_SETTERS(a, b, c, d, e, f, g, i);\n};\n"),
              ::testing::ElementsAre("XOptions: the comment's order differs from the fields"));
}

}  // namespace
}  // namespace accel::testing
