// mkdtemp creates the folder atomically, so tests that run in parallel cannot share one.
#include "tests/support/temporary_folder.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <system_error>

namespace accel::testing {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  auto pattern = (fs::temp_directory_path() / "accel-test.XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) throw std::system_error(errno, std::generic_category(), pattern);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  // Errors are ignored: a test may have removed the folder, or made files that it cannot delete.
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return path(name);
}

std::vector<std::string> TemporaryFolder::files() const {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(path_)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace accel::testing
