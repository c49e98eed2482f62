// Tests of the size and the format of the sources, so that a reader can take in each file and each folder as a
// unit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <sstream>

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

// The standard error of clang-format, which names each place that it would change.
std::string clang_format(const std::string& arguments) {
  const auto command =
      "cd '" + source_dir().string() + "' && clang-format-16 --dry-run --Werror " + arguments + " 2>&1";
  std::string output;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "cannot start clang-format-16";
  std::array<char, 4096> buffer{};
  for (std::size_t count = 0; (count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    output.append(buffer.data(), count);
  if (pclose(pipe) != 0 && output.empty()) output = "clang-format-16 failed";
  return output;
}

// One format for all, so that changes show only what changed.
TEST(SourceRulesTest, SourcesAreFormatted) {
  std::string files;
  for (const auto& file : all_sources()) files += file + " ";
  EXPECT_EQ(clang_format(files), "") << "run: git ls-files '*.hpp' '*.cpp' | xargs clang-format-16 -i";
}

}  // namespace
}  // namespace accel::testing
