// Mistakes that the compiler rejects with one sentence each, which says what to write. Without these static_asserts
// a user would get pages of template errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::mistakes_test {
namespace {

using ::testing::HasSubstr;

std::vector<std::string> expected_sentences() {
  std::ifstream in(source("tests/programs/natural_mistakes.cpp"));
  const std::string mark = "  // expected: ", continuation = "  // ";
  std::vector<std::string> sentences;
  bool is_open = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(mark)) {
      sentences.push_back(line.substr(mark.size()));
    } else if (is_open && line.starts_with(continuation)) {
      sentences.back() += " " + line.substr(continuation.size());
    }
    is_open = line.starts_with(continuation);
  }
  return sentences;
}

// The target natural_mistakes is not part of a normal build; the expected sentences stand in its source.
TEST(MistakesTest, EachIsRejectedByOneSentence) {
  const auto sentences = expected_sentences();
  ASSERT_GE(sentences.size(), 12U);
  const auto build = run_command({ACCEL_CMAKE, "--build", ACCEL_BUILD_DIR, "--target", "natural_mistakes"},
                                 {.limit = std::chrono::seconds(300)});
  ASSERT_NE(build.exit_code, 0);
  for (const auto& sentence : sentences) EXPECT_THAT(build.output, HasSubstr(sentence));
  std::istringstream in(build.output);
  std::size_t errors = 0, lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    if (line.find("error: ") == std::string::npos) continue;
    EXPECT_THAT(line, HasSubstr("static assertion failed")) << "something else than the sentence";
    ++errors;
  }
  EXPECT_EQ(errors, sentences.size());
  // At most 15 lines per mistake, which includes the location of the call.
  EXPECT_LE(lines, 15 * sentences.size()) << "the sentence, and where it was called";
}

// The library's headers are included as a user's own (-I), so that their warnings count too.
TEST(WarningsTest, TheQuickStartHasNoneUnderGccAndClang) {
  for (const auto* compiler : {"g++", ACCEL_COMPILER}) {
    const auto run =
        run_command({compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-isystem",
                     ACCEL_TORCH_INCLUDE, "-isystem", ACCEL_TORCH_INCLUDE "/torch/csrc/api/include", "-I", source("."),
                     "-I", source("reference/public"), source("reference/examples/quick_start/train.cpp")},
                    {.limit = std::chrono::seconds(200)});
    EXPECT_EQ(run.exit_code, 0) << compiler << "\n" << run.error;
  }
}

}  // namespace
}  // namespace accel::testing::mistakes_test
