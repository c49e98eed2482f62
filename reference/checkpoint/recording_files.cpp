#include "reference/checkpoint/recording_files.hpp"

#include <filesystem>

namespace accel::checkpoint {

class RecordingFiles::File final : public WritableFile {
 public:
  File(RecordingFiles& files, const std::string& path) : files_(files), path_(path), file_(files.files_.create(path)) {}

  void append(std::string_view bytes) override {
    file_->append(bytes);
    checksum_.update(bytes);
    size_ += std::ssize(bytes);
  }
  void sync() override { file_->sync(); }
  // Recorded only on close: a file that failed half-way must not be in the manifest.
  void close() override {
    file_->close();
    const auto name = std::filesystem::path(path_).lexically_relative(files_.folder_).string();
    files_.written_[path_] = {.name = name, .bytes = size_, .checksum = checksum_.hex()};
  }

 private:
  RecordingFiles& files_;
  const std::string path_;
  std::unique_ptr<WritableFile> file_;
  Checksum checksum_;
  std::int64_t size_ = 0;
};

std::vector<ManifestEntry> RecordingFiles::entries() const {
  std::vector<ManifestEntry> entries;
  for (const auto& [path, entry] : written_) entries.push_back(entry);
  return entries;
}

std::unique_ptr<WritableFile> RecordingFiles::create(const std::string& path) {
  return std::make_unique<File>(*this, path);
}

// write_atomically writes to a temporary name and renames, so the entry follows the rename.
void RecordingFiles::rename(const std::string& from, const std::string& to) {
  files_.rename(from, to);
  auto moved = written_.extract(from);
  if (moved.empty()) return;
  moved.key() = to;
  moved.mapped().name = std::filesystem::path(to).lexically_relative(folder_).string();
  written_.erase(to);
  written_.insert(std::move(moved));
}

void RecordingFiles::remove(const std::string& path) {
  files_.remove(path);
  written_.erase(path);
}

}  // namespace accel::checkpoint
