#include "sim/programs/runtime/temporary_folder.hpp"

#include <cstdlib>
#include <filesystem>

#include "reference/core/errors.hpp"

namespace accel::programs {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder() {
  auto pattern = (fs::temp_directory_path() / "sim-run.XXXXXX").string();
  check_config(mkdtemp(pattern.data()) != nullptr, "{}: cannot make a temporary folder",
               fs::temp_directory_path().string());
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace accel::programs
