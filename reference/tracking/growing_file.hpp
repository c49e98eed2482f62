#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "reference/core/files.hpp"

namespace accel::tracking {

/// A file's content; nothing if there is none.
std::optional<std::string> read_if_there(Files& files, const std::string& path);

/// Whole lines: without the rest that a crash left behind the last line end.
std::string_view whole_lines(std::string_view content);

/// A text file that keeps what earlier runs wrote, and grows by lines.
///
///     GrowingFile file(files, "runs/mnist/metrics.jsonl");
///     file.append("{\"step\": 1}\n");
///
/// `Files` begins files anew, so the old content goes into a temporary file, which then takes the old one's place and
/// goes on growing: at any time there is the old file or one that begins with all of its whole lines. Failures are
/// FileErrors. Thread rule: one thread.
class GrowingFile {
 public:
  GrowingFile(Files& files, std::string path);
  /// What is there now: whole lines.
  [[nodiscard]] std::string content() const;
  void append(std::string_view lines) { file_->append(lines); }
  /// Puts other content in its place, in one step, and grows from there.
  void replace(std::string_view content);
  void close() { file_->close(); }

 private:
  Files& files_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace accel::tracking
