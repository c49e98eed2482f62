// Tests of the format of the sources. properties/mutants/function_sizes_test.py limits the size of functions.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/architecture/shell.hpp"
#include "tests/architecture/sources.hpp"

namespace accel::testing {
namespace {

constexpr std::size_t kColumns = 120;

std::vector<std::string> all_sources() {
  return sources_below({"reference", "backends", "sim", "bench", "properties", "tests"});
}

// Counts the characters of UTF-8, not the bytes.
std::size_t columns_of(const std::string& line) {
  return std::count_if(line.begin(), line.end(), [](char byte) { return (byte & 0xc0) != 0x80; });
}

TEST(SourceRulesTest, LinesHaveALimit) {
  const auto files = all_sources();
  ASSERT_GT(files.size(), 500U);
  for (const auto& file : files) {
    const auto lines = split_lines(text_of(file));
    for (std::size_t line = 0; line < lines.size(); ++line)
      EXPECT_LE(columns_of(lines[line]), kColumns) << file << ":" << line + 1;
  }
}

// One format for all, so that changes show only what changed.
TEST(SourceRulesTest, SourcesAreFormatted) {
  if (run_shell("command -v clang-format-16").status != 0 && run_shell("command -v clang++-16").status != 0)
    GTEST_SKIP() << "needs clang-format-16, which Debian 13 lacks; another version formats in another way";
  std::string files;
  for (const auto& file : all_sources()) files += file + " ";
  const auto check = run_shell("clang-format-16 --dry-run --Werror " + files);
  EXPECT_EQ(check.status, 0);
  EXPECT_EQ(check.output, "") << "run: git ls-files '*.hpp' '*.cpp' | xargs clang-format-16 -i";
}

}  // namespace
}  // namespace accel::testing
