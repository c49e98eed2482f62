#include "reference/sources/text_file.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/sources/tokenizer/utf8.hpp"

namespace accel::sources {
namespace {

using namespace std::string_view_literals;

constexpr std::size_t kBeginBytes = 64 << 10;

unsigned byte_of(std::string_view bytes, std::size_t place) { return static_cast<unsigned char>(bytes[place]); }

// Text of ASCII characters contains none of these.
bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char byte) { return (byte > 0 && byte < '\t') || (byte > '\r' && byte < 0x1b); });
}

// A character may be cut at the end of the part that was read.
bool is_utf8(std::string_view begin) { return first_invalid_utf8(begin).value_or(begin.size()) + 4 > begin.size(); }

// Either most characters are below 256, so that every second byte is zero; or all line ends have two bytes, and the
// text makes no sense in UTF-8. Zero bytes alone are not enough, because text of one byte per character may have them.
bool is_utf16(std::string_view begin, bool is_big_endian) {
  const std::size_t low = is_big_endian ? 1 : 0, num_units = begin.size() / 2;
  std::size_t num_below_256 = 0, num_line_ends = 0, num_others = 0;
  bool has_zero_low = false;
  for (std::size_t place = 0; place + 1 < begin.size(); place += 2) {
    const auto low_byte = byte_of(begin, place + low), high_byte = byte_of(begin, place + 1 - low);
    has_zero_low = has_zero_low || low_byte == 0;
    if (high_byte == 0) ++num_below_256;
    if (low_byte == '\n' && high_byte == 0)
      ++num_line_ends;
    else if (low_byte == '\n' || high_byte == '\n')
      ++num_others;
  }
  if (num_units > 1 && !has_zero_low && 10 * num_below_256 >= 7 * num_units) return true;
  return num_line_ends > 0 && num_others == 0 && (!is_utf8(begin) || has_control_characters(begin));
}

// No code point has more than 21 bits. Text in UTF-8 would have a zero byte in every four.
bool is_utf32(std::string_view begin, bool is_big_endian) {
  for (std::size_t place = 0; place + 3 < begin.size(); place += 4) {
    const auto top = byte_of(begin, place + (is_big_endian ? 0 : 3)),
               second = byte_of(begin, place + (is_big_endian ? 1 : 2)),
               third = byte_of(begin, place + (is_big_endian ? 2 : 1)),
               last = byte_of(begin, place + (is_big_endian ? 3 : 0));
    if (top != 0 || second > 0x10 || (second == 0 && third == 0 && last == 0)) return false;
  }
  return begin.size() >= 8;
}

// The mark of UTF-32 begins with that of UTF-16.
std::string_view encoding_of(std::string_view begin, std::uint64_t num_bytes) {
  constexpr std::array kMarks{
      std::pair{"\xff\xfe\0\0"sv, "UTF-32 (little-endian)"sv}, std::pair{"\0\0\xfe\xff"sv, "UTF-32 (big-endian)"sv},
      std::pair{"\xff\xfe"sv, "UTF-16 (little-endian)"sv}, std::pair{"\xfe\xff"sv, "UTF-16 (big-endian)"sv}};
  for (const auto& [mark, name] : kMarks) {
    if (begin.starts_with(mark)) return name;
  }
  if (begin.find('\0') == std::string_view::npos) return "";
  if (num_bytes % 4 == 0 && is_utf32(begin, false)) return "UTF-32 (little-endian)";
  if (num_bytes % 4 == 0 && is_utf32(begin, true)) return "UTF-32 (big-endian)";
  if (num_bytes % 2 == 0 && is_utf16(begin, false)) return "UTF-16 (little-endian)";
  if (num_bytes % 2 == 0 && is_utf16(begin, true)) return "UTF-16 (big-endian)";
  return "";
}

// `end`: at least the last six bytes.
void check_is_text(const std::string& path, std::string_view begin, std::string_view end, std::uint64_t num_bytes) {
  const bool is_columnar =
      (begin.starts_with("PAR1") && end.ends_with("PAR1")) || (begin.starts_with("ARROW1") && end.ends_with("ARROW1"));
  check_config(!is_columnar,
               "{}: a Parquet or Arrow file; expected text; read it with ParquetDataset of <accel/parquet.hpp>", path);
  const auto compression = compression_of(begin);
  check_config(compression.empty(), "{}: {}; expected text; {} it", path, compression,
               compression.starts_with("a ZIP") ? "extract or export" : "decompress");
  const auto encoding = encoding_of(begin, num_bytes);
  check_config(encoding.empty(), "{}: the encoding is {}; expected UTF-8; convert the file, for example with iconv",
               path, encoding);
}

}  // namespace

std::string_view compression_of(std::string_view begin) {
  constexpr std::array kFormats{std::pair{"\x1f\x8b"sv, "a gzip file"sv},
                                std::pair{"\x1f\x9d"sv, "a file of compress (.Z)"sv},
                                std::pair{"\x28\xb5\x2f\xfd"sv, "a zstd file"sv},
                                std::pair{"\x04\x22\x4d\x18"sv, "an LZ4 file"sv},
                                std::pair{"\xfd\x37zXZ\0"sv, "an xz file"sv},
                                std::pair{"7z\xbc\xaf\x27\x1c"sv, "a 7z archive"sv},
                                std::pair{"PK\x03\x04"sv, "a ZIP archive or a workbook of Excel"sv}};
  for (const auto& [magic, name] : kFormats) {
    if (begin.starts_with(magic)) return name;
  }
  const bool is_bzip2 =
      begin.starts_with("BZh") && begin.substr(std::min<std::size_t>(begin.size(), 4)).starts_with("1AY&SY");
  return is_bzip2 ? "a bzip2 file" : "";
}

void check_is_text(const MappedFile& file) {
  const auto end_bytes = std::min<std::size_t>(file.size(), 6);
  check_is_text(file.path(), file.read(0, std::min(file.size(), kBeginBytes)),
                file.read(file.size() - end_bytes, end_bytes), file.size());
}

void check_is_text(const std::string& path, std::string_view text) {
  check_is_text(path, text.substr(0, kBeginBytes), text, text.size());
}

// Spreadsheets and editors write the mark; it is not part of the text.
std::size_t byte_order_mark_bytes(std::string_view begin) { return begin.starts_with("\xef\xbb\xbf") ? 3 : 0; }

}  // namespace accel::sources
