// What the README shows is what the tests run.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace {

namespace fs = std::filesystem;

fs::path source_dir() { return std::getenv("ACCEL_SOURCE_DIR"); }

std::string text_of(const fs::path& file) {
  std::ifstream in(source_dir() / file);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(ReadmeTest, CodeIsTheProgramThatTheTestsRun) {
  const auto readme = text_of("README.md");
  const std::string open = "```cpp\n";
  const auto begin = readme.find(open);
  ASSERT_NE(begin, std::string::npos);
  const auto end = readme.find("```", begin + open.size());
  EXPECT_EQ(readme.substr(begin + open.size(), end - begin - open.size()), text_of("reference/examples/quick_start/train.cpp"));
}

TEST(ReadmeTest, FilesItPointsToAreThere) {
  const auto readme = text_of("README.md");
  static const std::regex link(R"(\]\(([^)#:]+)\))");
  int links = 0;
  for (std::sregex_iterator match(readme.begin(), readme.end(), link), none; match != none; ++match, ++links) {
    EXPECT_TRUE(fs::exists(source_dir() / (*match)[1].str())) << (*match)[1];
  }
  EXPECT_GT(links, 5);
}

TEST(DifferencesTest, EveryTestThatTheTableNamesExists) {
  const auto table = text_of("reports/differences.md");
  std::string tests;
  for (const auto* top : {"tests", "properties"}) {
    for (const auto& entry : fs::recursive_directory_iterator(source_dir() / top)) {
      if (entry.path().extension() == ".cpp") tests += text_of(fs::relative(entry.path(), source_dir()));
    }
  }
  static const std::regex name(R"(`(\w+)\.(\w+)`)");
  int named = 0;
  for (std::sregex_iterator match(table.begin(), table.end(), name), none; match != none; ++match) {
    if ((*match)[1].str().find("Test") == std::string::npos && (*match)[1].str().find("Laws") == std::string::npos) continue;
    ++named;
    EXPECT_NE(tests.find((*match)[1].str() + ", " + (*match)[2].str()), std::string::npos) << (*match)[0];
  }
  EXPECT_GT(named, 5);
}

}  // namespace
