#pragma once

#include <string>

namespace accel {

/// A private temporary folder, removed with its contents at the end of the scope.
class TemporaryFolder {
 public:
  /// Throws ConfigError if it cannot be created.
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace accel
