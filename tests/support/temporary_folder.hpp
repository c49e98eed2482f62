#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace accel::testing {

/// A folder that goes when the value does.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  [[nodiscard]] std::string path(const std::string& name = "") const {
    return name.empty() ? path_.string() : (path_ / name).string();
  }
  /// Writes a file of the folder and returns its path.
  std::string write(const std::string& name, const std::string& content) const;
  /// The names in the folder, sorted.
  [[nodiscard]] std::vector<std::string> files() const;

 private:
  std::filesystem::path path_;
};

}  // namespace accel::testing
