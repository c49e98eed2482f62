// CSV parser. Opening a file walks over all records once, to validate them and to index their offsets; reading a
// record later uses the same walk.
#include "reference/sources/csv_file.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/sources/file_window.hpp"
#include "reference/sources/text_file.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

constexpr auto kNone = std::string_view::npos;

constexpr std::size_t kRecordBytesMax = std::size_t{1} << 28;

struct RecordEnd {
  std::size_t end = 0;          // start of the next record, or where the walk found an error
  const char* fault = nullptr;  // error in this record; null if there is none
  std::size_t fault_at = 0;     // byte offset of the error
};

// As in Python's csv module, \n, \r\n and a lone \r end a line.
bool ends_line(std::string_view bytes, std::size_t place) { return bytes[place] == '\n' || bytes[place] == '\r'; }

// Returns the position after the line end at `place`.
std::size_t next_line(std::string_view bytes, std::size_t place) {
  return place + (bytes.substr(place).starts_with("\r\n") ? 2 : 1);
}

// Walks over the record that starts at `begin` and calls field(raw text, is quoted) for each of its fields.
// Errors are returned and not thrown, because only the caller knows the file and the number of the record.
// Source: RFC 4180.
template <typename Field>
RecordEnd walk(std::string_view bytes, std::size_t begin, char delimiter, Field&& field) {
  auto place = begin;
  const auto at_end_of_field = [&] {
    return place == bytes.size() || bytes[place] == delimiter || ends_line(bytes, place);
  };
  for (;;) {
    const auto field_begin = place;
    const bool quoted = place < bytes.size() && bytes[place] == '"';
    if (quoted) {
      ++place;
      while (place < bytes.size() && (bytes[place] != '"' || (place + 1 < bytes.size() && bytes[place + 1] == '"')))
        place += bytes[place] == '"' ? 2 : 1;
      if (place >= bytes.size()) return {bytes.size(), "a quoted field is not closed", field_begin};
      ++place;
      if (!at_end_of_field()) return {place, "text after a closing quote", place};
      field(bytes.substr(field_begin + 1, place - field_begin - 2), true);
    } else {
      while (!at_end_of_field()) {
        if (bytes[place] == '"') return {place, "a quote inside an unquoted field", place};
        ++place;
      }
      field(bytes.substr(field_begin, place - field_begin), false);
    }
    if (place == bytes.size()) return {place};
    if (bytes[place] != delimiter) return {next_line(bytes, place)};
    ++place;
  }
}

// Unquoted fields contain no quotes (walk rejects them), so only quoted ones need unescaping.
std::string text_of(std::string_view raw, bool quoted) {
  if (!quoted) return std::string(raw);
  std::string text;
  for (auto place = raw.find('"'); place != kNone; place = raw.find('"')) {  // "" stands for one quote
    text += raw.substr(0, place + 1);
    raw.remove_prefix(place + 2);
  }
  return text += raw;
}

std::vector<std::string> fields_of(std::string_view bytes, std::size_t begin, char delimiter) {
  std::vector<std::string> fields;
  walk(bytes, begin, delimiter, [&](std::string_view raw, bool quoted) { fields.push_back(text_of(raw, quoted)); });
  return fields;
}

// Returns a character that may separate the columns of a record that has only one; 0: none. Text may end in one.
char other_delimiter(std::string_view record) {
  const auto place = record.starts_with('"') ? kNone : record.find_first_of(";\t|");
  return place == kNone || record.find_first_not_of("\r\n", place + 1) == kNone ? '\0' : record[place];
}

std::vector<std::string> numbered(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t column = 0; column < count; ++column) names.push_back(std::to_string(column));
  return names;
}

std::string_view name_of(char line_end) { return line_end == '\r' ? "\\r alone" : "\\n"; }

std::size_t without_empty_lines(std::string_view bytes, std::size_t place) {
  while (place < bytes.size() && ends_line(bytes, place)) place = next_line(bytes, place);
  return place;
}

}  // namespace

CsvFile::CsvFile(const std::vector<std::string>& paths, const CsvOptions& options) : options_(options) {
  check_argument(!paths.empty(), "csv: no files; expected at least one");
  check_argument(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
                 "csv: the delimiter is a quote or a line end; expected any other character");
  path_ = paths.front();
  for (const auto& path : paths) {
    records_.add_file(path, [&](const MappedFile& file, const auto& add) { read_file(file, add); });
  }
}

// Record numbers in messages start at 1, the header is number 0. A file with two kinds of line ends is an error,
// because a lone \r may also be text that its program should have quoted.
void CsvFile::read_file(const MappedFile& file, const std::function<void(std::int64_t)>& add) {
  sources::check_is_text(file);
  sources::FileWindow window(file);
  bool is_first = true;
  std::optional<char> line_end;
  std::int64_t number = options_.header ? 0 : 1;
  for (std::size_t begin = sources::byte_order_mark_bytes(window.from(0)); begin < file.size();) {
    const auto bytes = window.from(begin);
    if (const auto skipped = without_empty_lines(bytes, 0); skipped > 0) {
      begin += skipped;
      continue;
    }
    const auto where = [&] {
      return fmt::format("{}: {} (byte {})", file.path(), number == 0 ? "the header" : fmt::format("record {}", number),
                         begin);
    };
    std::size_t num_fields = 0;
    const auto record = walk(bytes, 0, options_.delimiter, [&](std::string_view, bool) { ++num_fields; });
    // The byte after the end of the window decides whether a quote is doubled and whether \n follows \r.
    if (record.end + 1 >= bytes.size() && !window.reaches_end()) {
      check_config(bytes.size() < kRecordBytesMax,
                   "{}: the record has more than {} bytes; expected at most {}; close its quotes, or split it", where(),
                   bytes.size(), kRecordBytesMax);
      window.grow(begin);
      continue;
    }
    if (record.fault != nullptr)
      throw ConfigError(
          fmt::format("{}: {} (byte {}); expected quotes only around a complete field, and \"\" for a quote inside it",
                      where(), record.fault, begin + record.fault_at));
    const auto text = bytes.substr(0, record.end);
    const auto zero = text.find('\0');
    check_config(zero == kNone, "{}: byte {} is zero; expected text; write or copy the file again", where(),
                 begin + zero);
    if (const auto end = text.back(); end == '\n' || end == '\r') {
      check_config(line_end.value_or(end) == end,
                   "{}: ends in {}, and the records before it in {}; expected one kind of line end; quote a \\r inside "
                   "a field, or convert the line ends",
                   where(), name_of(end), name_of(line_end.value_or(end)));
      line_end = end;
    }
    if (const auto other = other_delimiter(text); is_first && num_fields == 1 && other != '\0')
      warn_once(
          fmt::format("{}: has one column, '{}', with the delimiter '{}'; set CsvOptions::delimiter if '{}' separates "
                      "columns",
                      file.path(), text.substr(0, std::min<std::size_t>(text.find_first_of("\r\n"), 100)),
                      options_.delimiter, other));
    if (std::exchange(is_first, false))
      read_header(file, options_.header ? fields_of(bytes, 0, options_.delimiter) : numbered(num_fields));
    if (num_fields != columns_.size())
      throw ConfigError(fmt::format("{}: the record has {} fields; expected {}", where(), num_fields, columns_.size()));
    if (number++ > 0) add(static_cast<std::int64_t>(begin));
    begin += record.end;
  }
  check_config(!is_first || !options_.header, "{}: the file has no records; expected a header", file.path());
}

// Called once per file. The first file determines the columns and their order; others must repeat both, so that a
// column index is valid for all files.
void CsvFile::read_header(const MappedFile& file, std::vector<std::string> names) {
  if (!columns_.empty()) {
    check_config(names == columns_, "{}: the columns are {}; expected those of {}: {}", file.path(),
                 listed(names, ", "), path_, listed(columns_, ", "));
    return;
  }
  std::set<std::string> seen;
  for (const auto& name : names)
    check_config(seen.insert(name).second, "{}: the header contains '{}' twice; expected unique names", file.path(),
                 name);
  columns_ = std::move(names);
  for (std::size_t column = 0; column < columns_.size(); ++column) indices_[columns_[column]] = column;
}

std::size_t CsvFile::column(const std::string& name) const {
  const auto found = indices_.find(name);
  check_config(found != indices_.end(), "{}: the file has no column '{}'; its columns are {}", path_, name,
               listed(columns_, ", "));
  return found->second;
}

std::vector<std::string> CsvFile::fields(std::int64_t index) const {
  return fields_of(records_.record(index).text(), 0, options_.delimiter);
}

std::string CsvFile::where(std::int64_t index) const {
  const auto record = records_.record(index);
  return fmt::format("{}: record {} (byte {})", record.file->path(), record.number + 1, record.offset);
}

}  // namespace accel
