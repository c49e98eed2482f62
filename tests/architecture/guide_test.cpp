// README.md and the guide stay true: links resolve, C++ blocks equal the example that they are copied from, and
// commands use options that the programs declare. tests/programs/guide_commands_test.cpp runs the commands whose output
// is shown.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/architecture/commands.hpp"
#include "tests/architecture/sources.hpp"

namespace accel::testing::guide_test {
namespace {

namespace fs = std::filesystem;
using Lines = std::vector<std::string>;

/// The Markdown files below these folders, relative to the root. Build folders are not below them.
Lines pages_below(const Lines& folders) {
  Lines pages;
  for (const auto& folder : folders) {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / folder)) {
      if (entry.path().extension() == ".md") pages.push_back(fs::relative(entry.path(), source_dir()).string());
    }
  }
  std::sort(pages.begin(), pages.end());
  return pages;
}

Lines guide_pages() { return pages_below({"reference/guide"}); }

Lines readme_and_guide() {
  auto pages = guide_pages();
  pages.insert(pages.begin(), "README.md");
  return pages;
}

/// A fenced block, with the line above it.
struct Block {
  std::string mark, language;
  Lines lines;
};

/// A page as its fenced blocks and the prose between them.
struct Page {
  std::vector<Block> blocks;
  Lines prose;
};

Page parse_page(const std::string& text) {
  Page page;
  std::string above;
  bool is_fenced = false;
  for (const auto& line : split_lines(text)) {
    if (line.starts_with("```")) {
      if (!is_fenced) page.blocks.push_back({above, line.substr(3), {}});
      is_fenced = !is_fenced;
    } else if (is_fenced) {
      page.blocks.back().lines.push_back(line);
    } else {
      page.prose.push_back(line);
    }
    above = line;
  }
  return page;
}

// --- links -----------------------------------------------------------------------------------------------------------

/// GitHub's anchor of a heading: lower case, without punctuation, a hyphen for each space.
std::string anchor_of(const std::string& heading) {
  std::string anchor;
  for (const char letter : heading) {
    const auto byte = static_cast<unsigned char>(letter);
    if (std::isalnum(byte) != 0 || byte >= 0x80 || letter == '-' || letter == '_')
      anchor += static_cast<char>(std::tolower(byte));
    if (letter == ' ') anchor += '-';
  }
  return anchor;
}

std::set<std::string> anchors_of(const std::string& markdown) {
  std::set<std::string> anchors;
  std::map<std::string, int> counts;  // a heading that repeats gets a number
  for (const auto& line : parse_page(markdown).prose) {
    const auto hashes = line.find_first_not_of('#');
    if (!line.starts_with('#') || hashes == std::string::npos || line[hashes] != ' ') continue;
    const auto anchor = anchor_of(line.substr(hashes + 1));
    const int count = counts[anchor]++;
    anchors.insert(count == 0 ? anchor : anchor + "-" + std::to_string(count));
  }
  return anchors;
}

/// Targets of links and pictures outside of code.
Lines targets_of(const std::string& markdown) {
  static const std::regex code("`[^`]*`"), link(R"rx(\]\(([^)\s]+)\)|(?:src|srcset)="([^"]+)")rx");
  Lines targets;
  for (const auto& line : parse_page(markdown).prose) {
    const auto plain = std::regex_replace(line, code, "");
    for (std::sregex_iterator match(plain.begin(), plain.end(), link), none; match != none; ++match)
      targets.push_back((*match)[1].matched ? (*match)[1].str() : (*match)[2].str());
  }
  return targets;
}

/// What is wrong with a link of `page`; empty if it resolves. Addresses of other sites are not looked up.
std::string problem_of_link(const std::string& page, const std::string& target) {
  if (target.find("://") != std::string::npos) return "";
  const auto hash = std::min(target.find('#'), target.size());
  const auto path = hash == 0 ? fs::path(page) : fs::path(page).parent_path() / target.substr(0, hash);
  if (!fs::exists(source_dir() / path)) return page + ": " + target + ": no such file";
  if (hash == target.size() || anchors_of(text_of(path)).contains(target.substr(hash + 1))) return "";
  return page + ": " + target + ": no such heading";
}

TEST(GuideLinksTest, EveryLinkOfEveryPageResolves) {
  auto pages = pages_below({"reference", "sim", "backends", "bench", "properties", "tests", "configs", "reports"});
  for (const auto& entry : fs::directory_iterator(source_dir())) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path().filename().string());
  }
  int count = 0;
  for (const auto& page : pages) {
    for (const auto& target : targets_of(text_of(page))) {
      ++count;
      EXPECT_EQ(problem_of_link(page, target), "");
    }
  }
  EXPECT_GT(count, 60);
}

TEST(GuideLinksTest, ALinkThatDoesNotResolveIsNoticed) {
  EXPECT_EQ(anchor_of("Models that don't fit: `accel::call`, I/O"), "models-that-dont-fit-accelcall-io");
  EXPECT_EQ(anchors_of("# A b\n```\n# no heading\n```\n## A b\n"), (std::set<std::string>{"a-b", "a-b-1"}));
  EXPECT_EQ(targets_of("[a](b.md#c) `[](int)` <img src=\"d.png\">"), (Lines{"b.md#c", "d.png"}));
  EXPECT_EQ(problem_of_link("README.md", "https://example.org/x"), "");
  EXPECT_EQ(problem_of_link("reference/guide/README.md", "nowhere.md"),
            "reference/guide/README.md: nowhere.md: no such file");
  EXPECT_EQ(problem_of_link("README.md", "reference/guide/README.md#nothing"),
            "README.md: reference/guide/README.md#nothing: no such heading");
}

TEST(GuidePagesTest, EveryPageIsListedAndBeginsWithItsPurpose) {
  const auto index = text_of("reference/guide/README.md");
  for (const auto& page : guide_pages()) {
    const auto lines = split_lines(text_of(page));
    ASSERT_GT(lines.size(), 3U) << page;
    EXPECT_TRUE(lines[2].starts_with("After this page you ")) << page;
    const auto name = fs::path(page).filename().string();
    if (name != "README.md") {
      EXPECT_NE(index.find("(" + name + ")"), std::string::npos) << page;
    }
  }
  EXPECT_LE(split_lines(text_of("README.md")).size(), 120U);
}

// --- C++ blocks ------------------------------------------------------------------------------------------------------

Lines without_indentation(Lines lines) {
  for (auto& line : lines) line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
  return lines;
}

/// Whether the lines stand in the file one after the other, at any indentation.
bool is_part_of(const Lines& part, const std::string& file_text) {
  const auto file = without_indentation(split_lines(file_text)), wanted = without_indentation(part);
  return !wanted.empty() && std::search(file.begin(), file.end(), wanted.begin(), wanted.end()) != file.end();
}

// Examples are built and run by examples_test, so a copied block is code that works.
TEST(GuideCodeTest, EveryBlockIsCopiedFromAnExample) {
  static const std::regex copied(R"(<!-- copied from (reference/examples/\S+\.cpp) -->)");
  int count = 0;
  for (const auto& page : guide_pages()) {
    for (const auto& block : parse_page(text_of(page)).blocks) {
      if (block.language != "cpp") continue;
      ++count;
      std::smatch file;
      const auto first_line = block.lines.empty() ? "" : block.lines.front();
      if (!std::regex_match(block.mark, file, copied)) {
        ADD_FAILURE() << page << ": the block that begins with '" << first_line << "' does not name its example";
        continue;
      }
      EXPECT_TRUE(is_part_of(block.lines, text_of(file[1].str())))
          << page << ": the block that begins with '" << first_line << "' is not in " << file[1];
    }
  }
  EXPECT_GT(count, 20);
}

// clusters_test runs the scripts and manifests.
TEST(GuideCodeTest, EveryScriptOfAClusterIsCopiedWhole) {
  static const std::regex copied(R"(<!-- copied from (configs/clusters/\S+) -->)");
  int count = 0;
  for (const auto& block : parse_page(text_of("reference/guide/clusters.md")).blocks) {
    std::smatch file;
    ASSERT_TRUE(std::regex_match(block.mark, file, copied)) << block.mark;
    EXPECT_EQ(block.lines, split_lines(text_of(file[1].str()))) << file[1];
    ++count;
  }
  EXPECT_GE(count, 5);
}

TEST(GuideCodeTest, ALineThatDiffersIsNoticed) {
  EXPECT_TRUE(is_part_of({"b;", "", "  c;"}, "a;\n  b;\n\n    c;\nd;\n"));
  EXPECT_FALSE(is_part_of({"b;", "c;"}, "a;\nb;\n\nc;\n"));
  EXPECT_FALSE(is_part_of({}, "a;\n"));
}

// --- commands --------------------------------------------------------------------------------------------------------

/// Command lines of shell blocks, and of code within lines that begins with one of our programs.
Lines commands_of(const std::string& markdown) {
  static const std::regex code("`((?:\\./dev|sim-run|sim-calibrate|accel) [^`]*)`");
  const auto page = parse_page(markdown);
  Lines commands;
  for (const auto& block : page.blocks) {
    for (const auto& line : block.lines) {
      if (block.language == "sh") commands.push_back(line);
      if (block.language == "console" && line.starts_with("$ ")) commands.push_back(line.substr(2));
    }
  }
  for (const auto& line : page.prose) {
    for (std::sregex_iterator match(line.begin(), line.end(), code), none; match != none; ++match)
      commands.push_back((*match)[1]);
  }
  return commands;
}

TEST(GuideCommandsTest, EveryCommandAndOptionExists) {
  const Declarations declared;
  int count = 0;
  for (const auto& page : readme_and_guide()) {
    for (const auto& command : commands_of(text_of(page))) {
      ++count;
      EXPECT_EQ(problems_of_command(declared, command), Lines()) << page;
    }
  }
  EXPECT_GT(count, 50);
}

TEST(GuideCommandsTest, ACommandOrOptionThatNoProgramHasIsNoticed) {
  const Declarations declared;
  for (const auto* command :
       {"./dev fly", "./dev test --fast", "sim-run --rank 4 x.yaml", "accel fly",
        "accel launch --num_proceses 4 ./train", "sim-run --ranks 4 --no-such -- ./train", "accel data-check --rank 4"})
    EXPECT_EQ(problems_of_command(declared, command).size(), 1U) << command;
  for (const auto* command :
       {"./dev sim --ranks 8", "sim-run plan --no-even-batches --length 3", "eval \"$(accel env --variables)\"",
        "accel config --fsdp-version 2", "sim-run -- ./train --anything", "accel launch --cpu ./train --anything"})
    EXPECT_EQ(problems_of_command(declared, command), Lines()) << command;
}

}  // namespace
}  // namespace accel::testing::guide_test
