#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// A read-only memory-mapped file. The kernel reads pages on first access, so the file may be larger than memory.
///
///     const accel::MappedFile file("train.csv");
///     const auto first_line = file.bytes().substr(0, file.bytes().find('\n'));
///
/// The size is fixed when the file is opened. If another program shortens the file while it is mapped, access to the
/// lost part kills the process (SIGBUS). Replace files by rename instead of rewriting them.
/// Thread rule: any number of readers.
namespace accel {

class MappedFile {
 public:
  /// Throws ConfigError, which names the file, if the file cannot be opened or is not a regular file.
  explicit MappedFile(std::string path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string_view bytes() const { return bytes_; }

  /// Tells the kernel how the file will be read, so that it reads ahead or does not.
  enum class Access { kSequential, kRandom };
  void advise(Access access) const;

  /// Copies `part`, a part of `bytes()`, to `to`. Reads from the file and not through the mapping, so the bytes are in
  /// memory only once. If the path now names another file, copies from the mapping instead. Throws FileError if the
  /// file cannot be read or was shortened.
  void copy_out(std::string_view part, char* to) const;

 private:
  std::string path_;
  std::string_view bytes_;
  std::uint64_t device_ = 0,
                inode_ = 0;  // identify the file; keeping one open descriptor per mapping would need too many
};

}  // namespace accel
