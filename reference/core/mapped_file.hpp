#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// A file as read-only memory: pages are read when they are touched, and no file is in memory as a whole.
///
///     const accel::MappedFile file("train.csv");
///     const auto first_line = file.bytes().substr(0, file.bytes().find('\n'));
///
/// The size is that of the moment of opening. A file that another program shortens while it is mapped kills the process
/// (SIGBUS) where the lost part is touched: replace files by renaming, do not rewrite them.
/// Thread rule: any number of readers.
namespace accel {

class MappedFile {
 public:
  /// Throws ConfigError that names the file if it cannot be opened or is no regular file.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

  /// What to expect of the reading that follows; the kernel then reads ahead, or does not.
  enum class Access { kSequential, kRandom };
  void advise(Access access) const;

  /// Reads a part of `bytes` into memory of that size, front to back, without touching the mapping: as fast as the file
  /// can be copied, and in memory once. Where another file has the name by now, the mapping is copied. Throws FileError
  /// if the file cannot be read, or has been shortened.
  void copy_out(std::string_view part, char* to) const;

 private:
  std::string path_;
  std::string_view bytes_;
  std::uint64_t device_ = 0, inode_ = 0;  // which file it is; a descriptor for each mapping would be too many
};

}  // namespace accel
