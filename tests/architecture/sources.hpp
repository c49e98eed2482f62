#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

/// The project's own sources, for tests that read them.
namespace accel::testing {

inline std::filesystem::path source_dir() { return std::getenv("ACCEL_SOURCE_DIR"); }

/// The .hpp and .cpp files below `folders`, with paths relative to the root of the sources.
inline std::vector<std::string> sources_below(const std::vector<std::string>& folders) {
  std::vector<std::string> files;
  for (const auto& folder : folders) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(source_dir() / folder)) {
      const auto extension = entry.path().extension();
      if (extension == ".hpp" || extension == ".cpp")
        files.push_back(std::filesystem::relative(entry.path(), source_dir()).string());
    }
  }
  return files;
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(source_dir() / file);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> split_lines(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace accel::testing
