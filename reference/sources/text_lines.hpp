#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "reference/files/mapped_file.hpp"

/// Start offsets of the records of files. Needs 8 bytes of memory per record, independent of its length.
///
/// Thread rule: one thread may call `add_file`; afterwards any number of readers. Copies share the files.
namespace accel::sources {

class RecordIndex {
 public:
  struct Record {
    const MappedFile* file = nullptr;
    std::int64_t number = 0;     ///< index in its file, from 0
    std::int64_t offset = 0;     ///< byte offset in its file
    std::int64_t num_bytes = 0;  ///< up to the start of the next record, so including the line end

    /// Throws FileError, which names the file, if it cannot be read or was shortened.
    [[nodiscard]] std::string text() const {
      return file->read(static_cast<std::size_t>(offset), static_cast<std::size_t>(num_bytes));
    }
  };

  /// Adds the records of a file. `for_each_begin(file, add)` must call `add(offset)` for each record in order. The last
  /// record ends with the file.
  template <typename ForEachBegin>
  void add_file(const std::string& path, ForEachBegin&& for_each_begin) {
    const auto& file = *files_.emplace_back(std::make_shared<const MappedFile>(path));
    file.advise(MappedFile::Access::kSequential);
    for_each_begin(file, [&](std::int64_t offset) { begins_.push_back(offset); });
    file.advise(MappedFile::Access::kRandom);
    first_records_.push_back(size());
  }

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()); }
  /// Throws ArgumentError if `index` is out of range.
  [[nodiscard]] Record record(std::int64_t index) const;

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> first_records_{
      0};  // index of the first record of each file, then the number of all records
};

}  // namespace accel::sources

/// A dataset whose samples are the lines of text files, in order and without line ends.
///
///     accel::DataLoader loader(accel::TextLines("corpus.txt"), {.batch_size = 32, .shuffle = true});
///     for (auto& lines : loader) { ... }                       // std::vector<std::string>
///
/// Opening reads the files once, to index the lines; afterwards only requested lines are read. A line ends at \n or
/// \r\n, or at \r in a file without \n (elsewhere a lone \r is text, and so are other separators of Unicode); the last
/// line may lack its end. A UTF-8 byte order mark at the start of a file is skipped. Other bytes are returned
/// unchanged. Thread rule: any number of readers; copies share the files, but not the index (8 bytes per line).
namespace accel {

class TextLines {
 public:
  /// Throws ConfigError, which names the file, if one cannot be opened or is not text (text_file.hpp).
  explicit TextLines(const std::string& path) : TextLines(std::vector{path}) {}
  explicit TextLines(const std::vector<std::string>& paths);
  explicit TextLines(std::initializer_list<std::string> paths) : TextLines(std::vector(paths)) {}

  [[nodiscard]] std::int64_t size() const { return lines_.size(); }
  /// Throws ArgumentError if `index` is out of range, and FileError if the file cannot be read or was shortened.
  [[nodiscard]] std::string get(std::int64_t index) const;

 private:
  sources::RecordIndex lines_;
  std::set<const MappedFile*> files_of_cr_;  // whose lines end in \r
};

namespace sources {
/// Returns a line without its end: \r if `line_end` is \r, otherwise \n or \r\n.
std::string_view without_line_end(std::string_view line, char line_end);
}  // namespace sources

}  // namespace accel
