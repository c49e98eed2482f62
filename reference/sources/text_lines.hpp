#pragma once

#include <initializer_list>
#include <string>
#include <vector>

#include "reference/sources/record_index.hpp"

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
