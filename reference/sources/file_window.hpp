#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "reference/files/mapped_file.hpp"

namespace accel::sources {

/// The part of a file that a parser reads from front to back. It grows while a record does not fit.
///
///     FileWindow window(file);
///     while (!parse(window.from(begin)) && !window.reaches_end()) window.grow(begin);
///
/// Thread rule: one thread at a time.
class FileWindow {
 public:
  explicit FileWindow(const MappedFile& file) : file_(file) { grow(0); }

  /// Returns the bytes from `begin`, an offset in the file inside the window, to the end of the window.
  [[nodiscard]] std::string_view from(std::size_t begin) const {
    return std::string_view(bytes_).substr(begin - begin_);
  }
  [[nodiscard]] bool reaches_end() const { return begin_ + bytes_.size() == file_.size(); }

  /// Drops the bytes before `begin` and doubles the rest, so that a parser that starts again is still linear. Throws
  /// FileError as MappedFile::read does.
  void grow(std::size_t begin) {
    bytes_.erase(0, begin - begin_);
    begin_ = begin;
    const auto end = begin_ + bytes_.size();
    const auto num_bytes = std::min(std::max(kPieceBytes, bytes_.size()), file_.size() - end);
    bytes_.resize(bytes_.size() + num_bytes);
    file_.read(end, num_bytes, bytes_.data() + bytes_.size() - num_bytes);
  }

 private:
  static constexpr std::size_t kPieceBytes = 1 << 20;

  const MappedFile& file_;
  std::size_t begin_ = 0;
  std::string bytes_;
};

}  // namespace accel::sources
