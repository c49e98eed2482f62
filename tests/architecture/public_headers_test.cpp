// <accel/accel.hpp> stays small, and the guide's table lists which public header has which name.
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/architecture/sources.hpp"

namespace accel::testing::public_headers_test {
namespace {

namespace fs = std::filesystem;
using Paths = std::set<std::string>;
using Names = std::vector<std::string>;

const std::string kPublic = "reference/public/";
constexpr std::size_t kHeadersOfALoop = 110;  // an Accelerator with loaders, and the common schedules

/// The paths that a source of this repository includes from it.
Paths includes_of(const std::string& file) {
  const std::string include = "#include ";
  Paths paths;
  for (const auto& line : split_lines(text_of(file))) {
    if (!line.starts_with(include)) continue;
    const auto begin = include.size() + 1;  // after the quote
    const auto path = line.substr(begin, line.find_first_of(">\"", begin) - begin);
    if (fs::exists(source_dir() / path)) paths.insert(path);
    if (fs::exists(source_dir() / (kPublic + path))) paths.insert(kPublic + path);
  }
  return paths;
}

/// A public header such as "accel/accel.hpp", and all headers of this repository that it reaches.
Paths reached_from(const std::string& header) {
  Paths reached{kPublic + header};
  std::vector<std::string> open(reached.begin(), reached.end());
  while (!open.empty()) {
    const auto next = open.back();
    open.pop_back();
    for (const auto& path : includes_of(next)) {
      if (reached.insert(path).second) open.push_back(path);
    }
  }
  return reached;
}

Names public_headers() {
  Names headers;
  for (const auto& entry : fs::directory_iterator(source_dir() / kPublic / "accel"))
    headers.push_back("accel/" + entry.path().filename().string());
  std::sort(headers.begin(), headers.end());
  return headers;
}

/// The words of headers outside of comments.
Paths words_of(const Paths& headers) {
  Paths words;
  for (const auto& header : headers) {
    for (const auto& line : split_lines(text_of(header))) {
      const auto code = line.substr(0, line.find("//"));
      const auto is_letter = [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '_';
      };
      for (auto begin = code.begin(); begin != code.end();) {
        const auto end = std::find_if_not(begin, code.end(), is_letter);
        if (end != begin) words.emplace(begin, end);
        begin = std::find_if(end, code.end(), is_letter);
      }
    }
  }
  return words;
}

/// The rows of the guide's table: header -> names without their namespaces.
std::map<std::string, Names> table() {
  static const std::regex row(R"(\| `<(accel/\w+\.hpp)>` \| (.*) \|)"), name("`(?:\\w+::)*(\\w+)`");
  std::map<std::string, Names> rows;
  for (const auto& line : split_lines(text_of("reference/guide/getting_started.md"))) {
    std::smatch match;
    if (!std::regex_match(line, match, row)) continue;
    const auto cell = match[2].str();
    auto& names = rows[match[1]];
    for (std::sregex_iterator found(cell.begin(), cell.end(), name), none; found != none; ++found)
      names.push_back((*found)[1]);
  }
  return rows;
}

/// The words that a public header adds to <accel/accel.hpp>. A forward declaration there does not count.
Paths words_of_header(const std::string& header) {
  const auto all = reached_from(header);
  if (header == "accel/accel.hpp") return words_of(all);
  const auto loop = reached_from("accel/accel.hpp");
  Paths added;
  std::set_difference(all.begin(), all.end(), loop.begin(), loop.end(), std::inserter(added, added.end()));
  return words_of(added);
}

Names missing_names(const std::string& header, const Names& names) {
  const auto words = words_of_header(header);
  Names missing;
  for (const auto& name : names) {
    if (!words.contains(name)) missing.push_back(name);
  }
  return missing;
}

TEST(PublicHeadersTest, ATrainingLoopIncludesFewHeaders) {
  const auto loop = reached_from("accel/accel.hpp");
  EXPECT_GT(loop.size(), 50U);
  EXPECT_LE(loop.size(), kHeadersOfALoop);
}

// One include serves a program that was written when <accel/accel.hpp> had everything.
TEST(PublicHeadersTest, OneHeaderHasAllButOtherModelsAndLibraries) {
  const auto all = reached_from("accel/all.hpp");
  const Paths separate{"accel/models.hpp", "accel/parallel.hpp", "accel/parquet.hpp", "accel/pipeline.hpp",
                       "accel/sync_batch_norm.hpp"};
  for (const auto& header : public_headers())
    EXPECT_NE(all.contains(kPublic + header), separate.contains(header)) << header;
}

TEST(PublicHeadersTest, TheGuideNamesWhatEachHeaderAdds) {
  const auto rows = table();
  for (const auto& header : public_headers()) {
    ASSERT_TRUE(rows.contains(header)) << header;
    EXPECT_EQ(missing_names(header, rows.at(header)), Names()) << header;
  }
  EXPECT_GT(rows.at("accel/sources.hpp").size(), 10U);
}

TEST(PublicHeadersTest, ANameInTheWrongRowIsNoticed) {
  EXPECT_EQ(missing_names("accel/sources.hpp", {"CsvDataset", "Profiler", "StepLR"}), (Names{"Profiler", "StepLR"}));
  EXPECT_EQ(missing_names("accel/accel.hpp", {"Accelerator", "CsvDataset"}), (Names{"CsvDataset"}));
}

TEST(PublicHeadersTest, TheReferenceListsEachHeader) {
  const auto page = text_of("configs/docs/mainpage.md");
  for (const auto& header : public_headers())
    EXPECT_NE(page.find("| `<" + header + ">` |"), std::string::npos) << header;
}

}  // namespace
}  // namespace accel::testing::public_headers_test
