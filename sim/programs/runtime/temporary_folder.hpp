#pragma once

#include <string>

namespace accel::programs {

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
