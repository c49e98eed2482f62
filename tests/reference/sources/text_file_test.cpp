// Files that are no text in an encoding with the bytes of ASCII: every reader of text must name their format. Their
// bytes would otherwise become lines and fields.
#include "reference/sources/text_file.hpp"

#include <gmock/gmock.h>

#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/sources/csv_dataset.hpp"
#include "reference/sources/text_lines.hpp"
#include "reference/sources/token_blocks.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;
using testing::message_of;

// The code points of a text as units of some bytes.
std::string encoded(const std::u32string& text, int unit_bytes, bool is_big_endian) {
  std::string bytes;
  for (const auto character : text) {
    for (int place = 0; place < unit_bytes; ++place)
      bytes += static_cast<char>(character >> 8 * (is_big_endian ? unit_bytes - 1 - place : place));
  }
  return bytes;
}

class TextFileTest : public ::testing::Test {
 protected:
  // The errors of all readers of text.
  std::vector<std::string> errors_of(const std::string& bytes) {
    const auto path = folder_.write("file", bytes);
    const auto tokenizer = Tokenizer::from_file(folder_.write(
        "tokenizer.json", R"({"pre_tokenizer": {"type": "ByteLevel"}, "model": {"vocab": {}, "merges": []}})"));
    return {message_of<ConfigError>([&] { TextLines lines(path); }),
            message_of<ConfigError>([&] { CsvFile file({path}, {.header = false}); }),
            message_of<ConfigError>([&] { tokenize_files(tokenizer, {path}); })};
  }
  void expect_error(const std::string& bytes, const std::string& text) {
    for (const auto& error : errors_of(bytes)) EXPECT_THAT(error, HasSubstr(folder_.path("file") + ": " + text));
  }
  testing::TemporaryFolder folder_;
};

TEST_F(TextFileTest, OtherEncodingsOfUnicodeAreNamedByTheirMark) {
  for (const std::u32string text : {U"\ufeffa,b\n1,2\n", U"\ufeff\u65e5\u672c,b\n", U"\ufeff"}) {
    expect_error(encoded(text, 2, false), "the encoding is UTF-16 (little-endian); expected UTF-8; convert the file");
    expect_error(encoded(text, 2, true), "the encoding is UTF-16 (big-endian)");
    expect_error(encoded(text, 4, false), "the encoding is UTF-32 (little-endian)");
    expect_error(encoded(text, 4, true), "the encoding is UTF-32 (big-endian)");
  }
}

// Latin, Cyrillic and Chinese text, with and without lines.
TEST_F(TextFileTest, OtherEncodingsOfUnicodeAreFoundWithoutAMark) {
  for (const std::u32string text :
       {U"a,b\r\n1,2\r\n", U"name\n", U"one line", U"\u0434\u0430,\u043d\u0435\u0442\n1,2\n",
        U"\u4f60\u597d\u4e16\u754c\n\u4f60\u597d\n"}) {
    expect_error(encoded(text, 2, false), "the encoding is UTF-16 (little-endian)");
    expect_error(encoded(text, 2, true), "the encoding is UTF-16 (big-endian)");
    expect_error(encoded(text, 4, false), "the encoding is UTF-32 (little-endian)");
    expect_error(encoded(text, 4, true), "the encoding is UTF-32 (big-endian)");
  }
}

// Zero bytes alone prove nothing: printf("%s\0\n") writes them too.
TEST_F(TextFileTest, Utf8WithZeroBytesIsText) {
  using namespace std::string_literals;
  for (const auto& text : {"a\0b\n"s, "ab\0\ncdef\0\n"s, "\0a"s, "a\0"s, "line\n\0\0\0\0"s, "\0\0\0\0"s})
    EXPECT_EQ(message_of<ConfigError>([&] { TextLines lines(folder_.write("file", text)); }), "") << text;
  testing::expect_property(300, [&] {
    std::string text(40, 't');
    for (int i = 0, length = testing::pick(0, 20); i < length; ++i)
      text += testing::pick_from<std::string>({"a", "bc", " ", "\n", "\xc3\xa4", "\0"s});
    RC_ASSERT(message_of<ConfigError>([&] { TextLines lines(folder_.write("file", text)); }).empty());
  });
}

TEST_F(TextFileTest, CompressedFilesAreNamed) {
  using namespace std::string_literals;
  expect_error("\x28\xb5\x2f\xfd\n\n", "a zstd file; expected text; decompress it");
  expect_error("BZh91AY&SY\n", "a bzip2 file");
  expect_error(
      "\xfd"
      "7zXZ\0\n"s,
      "an xz file");
  expect_error("\x04\x22\x4d\x18\n", "an LZ4 file");
  expect_error("PK\x03\x04\n", "a ZIP archive or a workbook of Excel; expected text; extract or export it");
  const std::string gzip("\x1f\x8b\x08\0\0\0\0\0\0\x03\x4b\x04\0\x43\xbe\xb7\xe8\x01\0\0\0", 21);  // "a"
  EXPECT_THAT(errors_of(gzip)[0], HasSubstr("a gzip file; expected text; decompress it"));
  EXPECT_THAT(errors_of(gzip)[1], HasSubstr("a gzip file; expected text; decompress it"));
  EXPECT_EQ(errors_of(gzip)[2], "");
  EXPECT_THAT(errors_of("PAR1\x15\x04,\nPAR1")[0], HasSubstr("a Parquet or Arrow file; expected text"));
}

}  // namespace
}  // namespace accel
