// Plain ctest and a test that is started by hand leave no files, because nobody collects them.
#include "tests/support/artifacts.hpp"

#include <cstdlib>

namespace accel::testing {

namespace fs = std::filesystem;

std::optional<fs::path> artifact_path(const std::string& name) {
  const char* folder = std::getenv("ACCEL_ARTIFACTS");
  if (folder == nullptr || *folder == '\0') return std::nullopt;
  const auto path = fs::path(folder) / name;
  fs::create_directories(path.parent_path());
  return path;
}

}  // namespace accel::testing
