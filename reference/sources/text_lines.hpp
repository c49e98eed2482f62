#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/mapped_file.hpp"

/// Where the records of some mapped files begin: 8 bytes of memory a record, whatever its length.
///
/// Thread rule: `add_file` and `add` by one thread; then any number of readers, copies share the files.
namespace accel::sources {

class RecordIndex {
 public:
  struct Record {
    const MappedFile* file = nullptr;
    std::string_view bytes = {};  ///< up to the next record's begin, so with its line end
    std::int64_t number = 0;      ///< in its file, from 0
    std::int64_t offset = 0;      ///< of its first byte in its file
  };

  /// The records of one file. `for_each_begin(bytes, add)` calls `add(offset)` for each, in order; the last one ends
  /// with the file.
  template <typename ForEachBegin>
  void add_file(const std::string& path, ForEachBegin&& for_each_begin) {
    const auto& file = *files_.emplace_back(std::make_shared<const MappedFile>(path));
    file.advise(MappedFile::Access::kSequential);
    for_each_begin(file, [&](std::int64_t offset) { begins_.push_back(offset); });
    file.advise(MappedFile::Access::kRandom);
    first_records_.push_back(size());
  }

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(begins_.size()); }
  /// Throws ArgumentError outside of them.
  [[nodiscard]] Record record(std::int64_t index) const;

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<std::int64_t> begins_;
  std::vector<std::int64_t> first_records_{0};  // of each file, then the number of all
};

}  // namespace accel::sources

/// Samples are the lines of text files, one file after the other, without their ends.
///
///     accel::DataLoader loader(accel::TextLines("corpus.txt"), {.batch_size = 32, .shuffle = true});
///     for (auto& lines : loader) { ... }                       // std::vector<std::string>
///
/// Opening reads the files once, to find the lines; then only the lines asked for are read. A line ends at \n or \r\n
/// (a lone \r is text); the last one may lack its end. Bytes pass as they are: no encoding is assumed, none is checked.
/// Thread rule: any number of readers; copies share the files, not the index (8 bytes a line).
namespace accel {

class TextLines {
 public:
  /// Throws ConfigError that names the file if one cannot be opened.
  explicit TextLines(const std::string& path) : TextLines(std::vector{path}) {}
  explicit TextLines(const std::vector<std::string>& paths);
  explicit TextLines(std::initializer_list<std::string> paths) : TextLines(std::vector(paths)) {}

  [[nodiscard]] std::int64_t size() const { return lines_.size(); }
  /// Throws ArgumentError outside of the lines.
  [[nodiscard]] std::string get(std::int64_t index) const;

 private:
  sources::RecordIndex lines_;
};

namespace sources {
/// A line without its end, \n or \r\n.
std::string_view without_line_end(std::string_view line);
}  // namespace sources

}  // namespace accel
