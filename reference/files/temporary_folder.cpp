#include "reference/files/temporary_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "reference/core/errors.hpp"

namespace accel {

namespace fs = std::filesystem;

// mkdtemp creates the folder with access for its owner only, so that no other user can prepare files in it.
TemporaryFolder::TemporaryFolder() {
  auto pattern = (fs::temp_directory_path() / "accel.XXXXXX").string();
  check_config(mkdtemp(pattern.data()) != nullptr,
               "{}: cannot create a temporary folder; check its permissions, or set TMPDIR",
               fs::temp_directory_path().string());
  path_ = pattern;
}

// A destructor must not throw; a folder that cannot be removed is left to the system's cleaning of /tmp.
TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace accel
