#pragma once

#include <string>
#include <vector>

namespace accel::programs {

/// What is wrong with a file that is to be written: "/x is not a folder", "... cannot be written"; "" for nothing, or
/// no path.
std::string problem_of_output(const std::string& path);

/// A file that is there in full or not at all. What exists and is no file (a pipe, /dev/stdout) is written to: a rename
/// would put a file in its place. Throws Error.
void write_text(const std::string& path, const std::string& text);
void write_lines(const std::string& path, const std::vector<std::string>& lines);

/// A folder of this process's own, gone with everything in it when the scope ends. Throws ConfigError if none can be
/// made.
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

}  // namespace accel::programs
