#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/checkpoint/manifest.hpp"
#include "reference/files/files.hpp"

namespace accel::checkpoint {

/// Forwards to other Files and records what is written into one folder, for its manifest. The checksum is computed
/// while bytes pass through, so no file is read again. Thread rule: one thread at a time.
class RecordingFiles final : public Files {
 public:
  RecordingFiles(Files& files, std::string folder) : files_(files), folder_(std::move(folder)) {}

  /// Entries of the files that exist now, by name.
  [[nodiscard]] std::vector<ManifestEntry> entries() const;

  [[nodiscard]] std::unique_ptr<WritableFile> create(const std::string& path) override;
  [[nodiscard]] std::string read(const std::string& path) override { return files_.read(path); }
  [[nodiscard]] std::vector<std::string> list(const std::string& path) override { return files_.list(path); }
  void rename(const std::string& from, const std::string& to) override;
  void remove(const std::string& path) override;
  void make_folder(const std::string& path) override { files_.make_folder(path); }
  void sync_folder(const std::string& path) override { files_.sync_folder(path); }

 private:
  class File;

  Files& files_;
  std::string folder_;
  std::map<std::string, ManifestEntry> written_;  // by path
};

}  // namespace accel::checkpoint
