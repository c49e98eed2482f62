#include "sim/programs/rehearsal/output_files.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"

namespace accel::programs {

namespace fs = std::filesystem;

// Options are checked before a run starts: a run of hours must not fail at its end because of a misspelled folder.
std::string problem_of_output(const std::string& path) {
  if (path.empty()) return "";
  const auto folder = fs::path(path).has_parent_path() ? fs::path(path).parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) return fmt::format("{} is not a folder; create it first", folder.string());
  if (access(folder.c_str(), W_OK) != 0 || fs::is_directory(path))
    return fmt::format("{} cannot be written; expected a file in a folder that can be written to", path);
  return "";
}

void write_text(const std::string& path, const std::string& text) {
  // An atomic write renames a temporary file to `path`, which would replace a pipe or /dev/stdout by a regular file.
  if (!fs::exists(path) || fs::is_regular_file(path)) {
    PosixFiles files;
    write_atomically(files, path, text);
    return;
  }
  // A pipe may be closed by its reader, so success is only known after the flush.
  std::ofstream out(path);
  out << text << std::flush;
  if (!out) throw Error(fmt::format("{}: cannot be written", path));
}

void write_lines(const std::string& path, const std::vector<std::string>& lines) {
  std::string text;
  for (const auto& line : lines) text += line + "\n";
  write_text(path, text);
}

std::string utc_timestamp() {
  const auto now = std::time(nullptr);
  std::tm utc{};
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
  return text.data();
}

std::vector<std::string> lines_in(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) lines.push_back(std::move(line));
  return lines;
}

}  // namespace accel::programs
