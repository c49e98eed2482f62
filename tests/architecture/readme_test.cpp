// README.md shows a program that the tests run. The table of differences names existing tests; the guide has its rows.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/architecture/sources.hpp"

namespace accel::testing {
namespace {

namespace fs = std::filesystem;

TEST(ReadmeTest, ItsCodeIsTheProgramThatTheTestsRun) {
  const auto readme = text_of("README.md");
  const std::string open = "```cpp\n";
  const auto begin = readme.find(open);
  ASSERT_NE(begin, std::string::npos);
  const auto end = readme.find("```", begin + open.size());
  EXPECT_EQ(readme.substr(begin + open.size(), end - begin - open.size()),
            text_of("reference/examples/quick_start/train.cpp"));
}

// --- the table of differences ----------------------------------------------------------------------------------------

using Cells = std::vector<std::string>;

// The rows are written as `| a | b |`.
Cells cells_of(const std::string& row) {
  Cells cells;
  for (std::size_t begin = 2, end = 0; (end = row.find(" |", begin)) != std::string::npos; begin = end + 3)
    cells.push_back(row.substr(begin, end - begin));
  return cells;
}

std::vector<Cells> rows_of(const std::string& markdown) {
  std::vector<Cells> rows;
  std::istringstream lines(markdown);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("| ", 0) == 0) rows.push_back(cells_of(line));
  }
  return rows;
}

bool is_thread(const std::string& cell) {
  static const std::regex threads(R"(-|((PR )?[\w-]+#\d+|R([1-9]|1[01]))(, ((PR )?[\w-]+#\d+|R([1-9]|1[01])))*)");
  return std::regex_match(cell, threads);
}

// The tests that a cell names but that no source defines; "no test" if it names none.
std::vector<std::string> missing_tests(const std::string& cell, const std::string& sources) {
  static const std::regex name(R"(`(\w+)\.(\w+)`)");
  std::vector<std::string> missing;
  int named = 0;
  for (std::sregex_iterator match(cell.begin(), cell.end(), name), none; match != none; ++match, ++named) {
    if (sources.find((*match)[1].str() + ", " + (*match)[2].str() + ")") == std::string::npos)
      missing.push_back((*match)[0]);
  }
  if (named == 0) missing.emplace_back("no test");
  return missing;
}

std::string sources_of_tests() {
  std::string sources;
  for (const auto* top : {"tests", "properties"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / top)) {
      if (entry.path().extension() == ".cpp") sources += text_of(fs::relative(entry.path(), source_dir()));
    }
  }
  return sources;
}

// Each row claims a difference from Accelerate. A thread on the web and a test of ours have to support the claim.
TEST(DifferencesTest, EveryRowNamesItsThreadAndTestsThatExist) {
  const auto rows = rows_of(text_of("reports/differences.md"));
  const auto sources = sources_of_tests();
  ASSERT_GT(rows.size(), 20U);
  EXPECT_EQ(rows[0], Cells({"Subject", "Accelerate 1.15", "accel", "Thread", "Test"}));
  for (std::size_t row = 1; row < rows.size(); ++row) {
    ASSERT_EQ(rows[row].size(), rows[0].size()) << ::testing::PrintToString(rows[row]);
    for (const auto& cell : rows[row]) EXPECT_FALSE(cell.empty()) << rows[row][0];
    EXPECT_TRUE(is_thread(rows[row][3])) << rows[row][0] << ": " << rows[row][3];
    EXPECT_EQ(missing_tests(rows[row][4], sources), std::vector<std::string>()) << rows[row][0];
  }
}

// The entry of the guide's page, on one line.
std::string entry_of(const Cells& row) { return "* **" + row[0] + ".** " + row[2] + ". Accelerate: "; }

TEST(DifferencesTest, TheGuidesPageHasEveryRow) {
  static const std::regex wrapped("\n  ");
  const auto page = std::regex_replace(text_of("reference/guide/differences.md"), wrapped, " ");
  auto rows = rows_of(text_of("reports/differences.md"));
  rows.erase(rows.begin());
  for (const auto& row : rows) {
    const auto entry = entry_of(row);
    const auto begin = page.find(entry);
    ASSERT_NE(begin, std::string::npos) << entry;
    const auto theirs = page.substr(begin + entry.size(), row[1].size() + 3);  // begins with a small letter there
    EXPECT_EQ(theirs.substr(1), row[1].substr(1) + ".[^");
    const auto threads = row[3] == "-" ? "none known" : row[3];
    EXPECT_NE(page.find("]: Threads: " + threads + ". Tests: " + row[4] + "."), std::string::npos) << row[0];
  }
}

// Options in messages that refuse them: words with an underscore in front of the first semicolon of a literal.
std::set<std::string> refused_options(const std::string& source) {
  static const std::regex comment(R"(//[^\n]*)"), joint(R"rx("\s*\n\s*")rx"), literal(R"rx("((?:[^"\\\n]|\\.)*)")rx"),
      refusal("unsupported|does not support"), option("[a-z][a-z0-9]*(?:_[a-z0-9]+)+");
  const auto text = std::regex_replace(std::regex_replace(source, comment, ""), joint, "");
  std::set<std::string> options;
  for (std::sregex_iterator match(text.begin(), text.end(), literal), end; match != end; ++match) {
    const auto message = (*match)[1].str();
    const auto first = message.substr(0, message.find(';'));
    std::smatch found;
    if (std::regex_search(message, refusal) && std::regex_search(first, found, option)) options.insert(found.str());
  }
  return options;
}

// Accelerate accepts these options, so each is a difference. Exceptions: options that Accelerate lacks, and calls that
// it refuses too.
TEST(DifferencesTest, OptionsThatAreRefusedHaveARow) {
  const std::set<std::string> exceptions{"batch_sampler",    // with order: elastic
                                         "master_weights",   // an option of accel
                                         "clip_grad_value",  // under FSDP
                                         "pad_across_processes",
                                         "pp_size",  // an addition to Accelerate's sizes
                                         "unique_ptr",
                                         "with_gradients"};  // an option of accel
  const auto table = text_of("reports/differences.md");
  std::set<std::string> missing, known;
  for (const auto* folder : {"reference/accelerator", "reference/config", "reference/data", "reference/mesh",
                             "reference/parallel", "reference/prepared", "reference/tracking", "sim/programs/accel"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / folder)) {
      const auto extension = entry.path().extension();
      if (extension != ".cpp" && extension != ".hpp") continue;
      for (const auto& option : refused_options(text_of(fs::relative(entry.path(), source_dir())))) {
        known.insert(option);
        if (!exceptions.contains(option) && table.find(option) == std::string::npos) missing.insert(option);
      }
    }
  }
  EXPECT_EQ(missing, std::set<std::string>()) << "add a row to reports/differences.md";
  EXPECT_TRUE(known.contains("join_uneven_inputs") && known.contains("with_stack") && known.size() > 10)
      << known.size();
}

TEST(DifferencesTest, ARefusalInAMessageIsFound) {
  EXPECT_EQ(
      refused_options("f(\"with_stack: true is un\"\n  \"supported; unset an_other\");  // not_this: unsupported"),
      std::set<std::string>{"with_stack"});
  EXPECT_EQ(refused_options("f(\"with_stack: expected 1\", \"unsupported; set an_other\")"), std::set<std::string>());
}

TEST(DifferencesTest, ARowThatLacksSomethingIsNoticed) {
  EXPECT_EQ(rows_of("| `a|b` | c |  | - |\ntext\n"), std::vector<Cells>({{"`a|b`", "c", "", "-"}}));
  for (const auto* thread : {"-", "A#1", "PR A#1, R2", "sentence-transformers#3946"})
    EXPECT_TRUE(is_thread(thread)) << thread;
  for (const auto* thread : {"", "A#", "#1", "R12", "A#1 R2", "A#1, "}) EXPECT_FALSE(is_thread(thread)) << thread;
  const std::string sources = "TEST(ATest, Is) TEST_P(BTest, IsNot)";
  EXPECT_TRUE(missing_tests("`ATest.Is`, `BTest.IsNot`", sources).empty());
  EXPECT_EQ(missing_tests("`ATest.Is`, `ATest.I`", sources), std::vector<std::string>{"`ATest.I`"});
  EXPECT_EQ(missing_tests("a test", sources), std::vector<std::string>{"no test"});
}

}  // namespace
}  // namespace accel::testing
