#include "reference/sources/text_lines.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::sources {

// first_records_ ends with the number of all records, so the file after the last one needs no special case. The
// end of a record is the start of the next one in the same file, or the end of the file.
RecordIndex::Record RecordIndex::record(std::int64_t index) const {
  check_argument(index >= 0 && index < size(),
                 "record index {} is out of range for {} records; expected 0 or more and less than {}", index, size(),
                 size());
  const auto file = std::upper_bound(first_records_.begin(), first_records_.end(), index) - first_records_.begin() - 1;
  const auto& mapped = *files_[file];
  const auto begin = begins_[index];
  const auto end =
      index + 1 < first_records_[file + 1] ? begins_[index + 1] : static_cast<std::int64_t>(mapped.bytes().size());
  const auto bytes = mapped.bytes().substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  return {.file = &mapped, .bytes = bytes, .number = index - first_records_[file], .offset = begin};
}

}  // namespace accel::sources

namespace accel {

// A lone \r at the end of the last line is text and stays.
std::string_view sources::without_line_end(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(line.ends_with("\r\n") ? 2 : 1);
  return line;
}

// An empty file has no lines, and a last line without a line end counts, as in Python's file iteration.
TextLines::TextLines(const std::vector<std::string>& paths) {
  for (const auto& path : paths) {
    lines_.add_file(path, [](const MappedFile& file, const auto& add) {
      const auto bytes = file.bytes();
      for (std::size_t begin = 0; begin < bytes.size();) {
        add(static_cast<std::int64_t>(begin));
        const auto end = bytes.find('\n', begin);
        begin = end == std::string_view::npos ? bytes.size() : end + 1;
      }
    });
  }
}

std::string TextLines::get(std::int64_t index) const {
  return std::string(sources::without_line_end(lines_.record(index).bytes));
}

}  // namespace accel
