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
  const auto& opened = *files_[file];
  const auto begin = begins_[index];
  const auto end = index + 1 < first_records_[file + 1] ? begins_[index + 1] : static_cast<std::int64_t>(opened.size());
  return {.file = &opened, .number = index - first_records_[file], .offset = begin, .num_bytes = end - begin};
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
      if (file.size() > 0) add(0);
      file.read_pieces([&](std::size_t begin, std::string_view piece) {
        for (auto end = piece.find('\n'); end != std::string_view::npos; end = piece.find('\n', end + 1)) {
          if (begin + end + 1 < file.size()) add(static_cast<std::int64_t>(begin + end + 1));
        }
      });
    });
  }
}

std::string TextLines::get(std::int64_t index) const {
  auto line = lines_.record(index).text();
  line.resize(sources::without_line_end(line).size());
  return line;
}

}  // namespace accel
