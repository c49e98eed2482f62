#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reference/files/files.hpp"

namespace accel::tracking {

/// Returns the content of a file; nullopt if the file does not exist.
std::optional<std::string> read_if_exists(Files& files, const std::string& path);

/// Returns the complete lines, without an incomplete one that a crash left at the end.
std::string_view complete_lines(std::string_view content);

/// A text file that keeps the content of earlier runs and grows line by line.
///
///     AppendableFile file(files, "runs/mnist/metrics.jsonl");
///     file.append("{\"step\": 1}\n");
///
/// `Files` cannot append to existing files, so the old content is copied to a temporary file, which replaces the old
/// one and continues to grow. At any time, the path names the old file or one that starts with all its complete lines.
/// Failures throw FileError. Thread rule: one thread.
class AppendableFile {
 public:
  AppendableFile(Files& files, std::string path);
  /// Returns the current complete lines.
  [[nodiscard]] std::string content() const;
  void append(std::string_view lines) { file_->append(lines); }
  /// Replaces the content atomically and continues after it.
  void replace(std::string_view content);
  void close() { file_->close(); }

 private:
  Files& files_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace accel::tracking
