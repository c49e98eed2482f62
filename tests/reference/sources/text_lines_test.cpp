// Tests of reading lines of text as samples. Random lines with every kind of line end have to be read back exactly.
#include "reference/sources/text_lines.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::ElementsAre;

static_assert(MapDataset<TextLines>);

// All lines, by their index.
std::vector<std::string> all_lines(const TextLines& lines) {
  std::vector<std::string> all;
  for (std::int64_t index = 0; index < lines.size(); ++index) all.push_back(lines.get(index));
  return all;
}

class TextLinesTest : public ::testing::Test {
 protected:
  std::vector<std::string> lines_of(const std::string& text) {
    return all_lines(TextLines(folder_.write("text", text)));
  }
  testing::TemporaryFolder folder_;
};

// A line end at the end of the file does not begin another line.
TEST_F(TextLinesTest, LinesEndAtEitherLineEndAndTheLastMayLackIt) {
  EXPECT_THAT(lines_of("a\nb\r\n\r\n\nlast"), ElementsAre("a", "b", "", "", "last"));
  EXPECT_THAT(lines_of("a\n"), ElementsAre("a"));
  EXPECT_THAT(lines_of("\n"), ElementsAre(""));
  EXPECT_THAT(lines_of(""), ElementsAre());
}

// Only "\n" and "\r\n" end a line. Bytes that are not UTF-8, and zero bytes, must pass unchanged.
TEST_F(TextLinesTest, ALoneCarriageReturnAndInvalidUtf8AreText) {
  EXPECT_THAT(lines_of("a\rb\n\xff\xfe\r"), ElementsAre("a\rb", "\xff\xfe\r"));
  EXPECT_THAT(lines_of(std::string("a\0b\nc", 5)), ElementsAre(std::string("a\0b", 3), "c"));
}

// As in Python's file iteration. A file that has \n keeps \r, which programs write to overwrite a line on a screen.
TEST_F(TextLinesTest, LinesOfAFileWithoutNewlineEndInACarriageReturn) {
  EXPECT_THAT(lines_of("a\rb\r\rc"), ElementsAre("a", "b", "", "c"));
  EXPECT_THAT(lines_of("a\r"), ElementsAre("a"));
  EXPECT_THAT(lines_of("a\rb\rc\n"), ElementsAre("a\rb\rc"));
  const TextLines lines({folder_.write("a", "1\r2\r"), folder_.write("b", "3\r\n4\r"), folder_.write("c", "5\r")});
  EXPECT_THAT(all_lines(lines), ElementsAre("1", "2", "3", "4\r", "5"));
}

// Python's str.splitlines splits at all of these; its files, and the datasets of Hugging Face, do not.
TEST_F(TextLinesTest, OtherSeparatorsOfUnicodeAreText) {
  const std::string line = "a\x0b\x0c\x1c\x1d\x1e\xc2\x85\xe2\x80\xa8\xe2\x80\xa9 b";
  EXPECT_THAT(lines_of(line + "\n" + line), ElementsAre(line, line));
}

TEST_F(TextLinesTest, AByteOrderMarkIsNotPartOfTheFirstLine) {
  EXPECT_THAT(lines_of("\xef\xbb\xbf"
                       "a\nb"),
              ElementsAre("a", "b"));
  EXPECT_THAT(lines_of("\xef\xbb\xbf\na"), ElementsAre("", "a"));
  EXPECT_THAT(lines_of("\xef\xbb\xbf"
                       "a\rb"),
              ElementsAre("a", "b"));
  EXPECT_THAT(lines_of("\xef\xbb\xbf"), ElementsAre());
}

// The first file ends without a line end; "2" and "3" must not become "23".
TEST_F(TextLinesTest, FilesFollowOneAnotherAndALineEndsWithItsFile) {
  const TextLines lines({folder_.write("a", "1\n2"), folder_.write("b", ""), folder_.write("c", "3\n4\n")});
  EXPECT_THAT(all_lines(lines), ElementsAre("1", "2", "3", "4"));
  EXPECT_THROW((void)lines.get(4), ArgumentError);
  EXPECT_THROW((void)lines.get(-1), ArgumentError);
}

// Found when the data set is created, not in the middle of an epoch.
TEST_F(TextLinesTest, MissingFileIsNamed) {
  try {
    TextLines lines({folder_.write("a", "1"), folder_.path("none")});
    FAIL() << "opened";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("none: cannot be opened"));
  }
}

// A braced pair of string literals could also be taken for the two iterators of one std::string.
TEST_F(TextLinesTest, TwoStringsAreTwoFileNames) {
  EXPECT_THROW(TextLines({"no such file", "nor this"}), ConfigError) << "and not the two ends of one text";
}

// Letters, tabs, carriage returns and an incomplete UTF-8 sequence.
TEST_F(TextLinesTest, AnyLinesAreReadBackAsTheyWereWritten) {
  testing::expect_property(200, [&] {
    const auto lines = *rc::gen::container<std::vector<std::string>>(
        rc::gen::container<std::string>(rc::gen::elementOf(std::string("ab \r\t\xc3"))));
    std::string text;
    std::vector<std::string> expected;
    for (const auto& line : lines) {
      text += line + (line.ends_with('\r') || *rc::gen::arbitrary<bool>()
                          ? "\r\n"
                          : "\n");  // a \r before \n would be the line end's
      expected.push_back(line);
    }
    RC_ASSERT(lines_of(text) == expected);
  });
}

}  // namespace
}  // namespace accel
