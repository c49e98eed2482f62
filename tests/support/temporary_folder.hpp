#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel::testing {

/// A temporary folder, which is removed when the object is destroyed.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  /// Writes a file into the folder and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  /// Returns the names in the folder, sorted.
  [[nodiscard]] std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

}  // namespace accel::testing
