#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

/// A read-only file that is read in parts. The file may be larger than memory.
///
///     const accel::MappedFile file("train.bin");
///     const auto header = file.read(0, 8);
///
/// The size is fixed when the file is opened. If another program shortens the file later, or the disk fails, `read`
/// throws an error that names the file. Replace files by rename instead of rewriting them: an open file keeps its
/// bytes.
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
  [[nodiscard]] std::size_t size() const { return bytes_.size(); }

  /// Copies `num_bytes` from offset `begin` to `to`, which may be null for 0 bytes. Throws FileError, which names the
  /// file, if the file cannot be read or was shortened. Throws ArgumentError if the part is outside the file.
  void read(std::size_t begin, std::size_t num_bytes, char* to) const;
  [[nodiscard]] std::string read(std::size_t begin, std::size_t num_bytes) const;
  /// Returns the complete file.
  [[nodiscard]] std::string read() const { return read(0, size()); }

  /// Calls `use` with the complete file, 1 MiB at a time, and with the offset of each piece. Throws as `read` does.
  void read_pieces(const std::function<void(std::size_t begin, std::string_view bytes)>& use) const;

  /// Declares how the file will be read, so that the kernel reads ahead or does not.
  enum class Access { kSequential, kRandom };
  void advise(Access access) const;

 private:
  void read_from(int descriptor, std::size_t begin, std::size_t num_bytes, char* to) const;
  void read_mapping(std::size_t begin, std::size_t num_bytes, char* to) const;

  std::string path_;
  std::string_view bytes_;
  int descriptor_ = -1;                   // negative: the file is opened for each read
  std::uint64_t device_ = 0, inode_ = 0;  // identify the file when it is opened again
};

}  // namespace accel
