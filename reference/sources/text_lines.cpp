#include "reference/sources/text_lines.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/sources/text_file.hpp"

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

// In a file of \n, a lone \r at the end of the last line is text and stays.
std::string_view sources::without_line_end(std::string_view line, char line_end) {
  if (line.ends_with(line_end)) line.remove_suffix(line.ends_with("\r\n") ? 2 : 1);
  return line;
}

// An empty file has no lines, and a last line without a line end counts, as in Python's file iteration. The places
// after \r are kept until there is a \n.
TextLines::TextLines(const std::vector<std::string>& paths) {
  for (const auto& path : paths) {
    lines_.add_file(path, [&](const MappedFile& file, const auto& add) {
      sources::check_is_text(file);
      const auto first = sources::byte_order_mark_bytes(file.read(0, std::min<std::size_t>(file.size(), 3)));
      if (file.size() > first) add(static_cast<std::int64_t>(first));
      std::vector<std::int64_t> places_of_cr;
      bool has_newline = false;
      const auto for_each_end = [&](char line_end, std::size_t begin, std::string_view piece, const auto& use) {
        for (auto end = piece.find(line_end); end != std::string_view::npos; end = piece.find(line_end, end + 1)) {
          if (begin + end + 1 < file.size()) use(static_cast<std::int64_t>(begin + end + 1));
        }
      };
      file.read_pieces([&](std::size_t begin, std::string_view piece) {
        has_newline = has_newline || piece.find('\n') != std::string_view::npos;
        if (has_newline)
          for_each_end('\n', begin, piece, add);
        else
          for_each_end('\r', begin, piece, [&](std::int64_t place) { places_of_cr.push_back(place); });
      });
      if (has_newline) return;
      files_of_cr_.insert(&file);
      for (const auto place : places_of_cr) add(place);
    });
  }
}

std::string TextLines::get(std::int64_t index) const {
  const auto record = lines_.record(index);
  auto line = record.text();
  line.resize(sources::without_line_end(line, files_of_cr_.contains(record.file) ? '\r' : '\n').size());
  return line;
}

}  // namespace accel
