#pragma once

#include <string>
#include <vector>

namespace accel::programs {

/// Returns why the file cannot be written and what to do, as in "/x is not a folder; create it first". Returns "" if it
/// can be written or `path` is empty.
std::string problem_of_output(const std::string& path);

/// Writes the file atomically: it exists in full or not at all. An existing path that is not a regular file (a pipe,
/// /dev/stdout) is written directly, because a rename would replace it. Throws Error.
void write_text(const std::string& path, const std::string& text);
void write_lines(const std::string& path, const std::vector<std::string>& lines);

/// Returns the current time in UTC, such as 2026-11-25T16:21:06Z, for a file that says when it was made.
std::string utc_timestamp();

/// A private temporary folder, removed with its contents at the end of the scope. The constructor throws ConfigError if
/// it cannot be created.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// Returns the lines of a file; none if it cannot be read.
std::vector<std::string> lines_in(const std::string& path);

}  // namespace accel::programs
