// Tests of the size and the format of the sources, so that a reader can take in each file and each folder as a
// unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "tests/architecture/shell.hpp"
#include "tests/architecture/sources.hpp"

namespace accel::testing {
namespace {

constexpr std::size_t kColumns = 120, kSourceLines = 400, kHeaderLines = 300, kSourcesPerFolder = 40;

std::vector<std::string> all_sources() {
  return sources_below({"reference", "backends", "sim", "bench", "properties", "tests"});
}

// Counts the characters of UTF-8, not the bytes.
std::size_t columns_of(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

TEST(SourceRulesTest, FilesAndLinesHaveALimit) {
  const auto files = all_sources();
  ASSERT_GT(files.size(), 500U);
  for (const auto& file : files) {
    const auto lines = split_lines(text_of(file));
    const auto limit = file.ends_with(".hpp") ? kHeaderLines : kSourceLines;
    EXPECT_LE(lines.size(), limit) << file;
    for (std::size_t line = 0; line < lines.size(); ++line)
      EXPECT_LE(columns_of(lines[line]), kColumns) << file << ":" << line + 1;
  }
}

TEST(SourceRulesTest, FoldersHaveALimitOfFiles) {
  std::map<std::string, std::size_t> counts;
  for (const auto& file : all_sources()) ++counts[file.substr(0, file.rfind('/'))];
  for (const auto& [folder, count] : counts) EXPECT_LE(count, kSourcesPerFolder) << folder;
}

// One format for all, so that changes show only what changed.
TEST(SourceRulesTest, SourcesAreFormatted) {
  std::string files;
  for (const auto& file : all_sources()) files += file + " ";
  const auto check = run_shell("clang-format-16 --dry-run --Werror " + files);
  EXPECT_EQ(check.status, 0);
  EXPECT_EQ(check.output, "") << "run: git ls-files '*.hpp' '*.cpp' | xargs clang-format-16 -i";
}

}  // namespace
}  // namespace accel::testing
