#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

/// A file that is read sequentially with constant memory. gzip files are decompressed transparently.
///
/// Offsets count uncompressed bytes. A gzip file may have several members; other data after them, except zeros, are an
/// error. It may expand to 64 MiB, or to 100 times its size if that is more; data that expand further are rejected,
/// because a small damaged or hostile file could otherwise fill the memory.
/// Thread rule: one thread at a time.
namespace accel {

class SequentialFile {
 public:
  /// Throws ConfigError, which names the file, if it cannot be opened.
  explicit SequentialFile(std::string path);
  ~SequentialFile();

  /// Reads up to `num_bytes` and returns the number of bytes read, which is smaller only at the end of the file.
  /// Throws ConfigError, which names the file, if gzip data are damaged, truncated or expand too far.
  std::int64_t read(char* data, std::int64_t num_bytes);
  /// Skips `num_bytes`; returns false if the file ends earlier. Throws as `read` does.
  bool skip(std::int64_t num_bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  class Source;
  [[noreturn]] void throw_damaged() const;
  void check_expansion() const;

  std::string path_;
  std::unique_ptr<Source> source_;
  std::int64_t offset_ = 0;
  std::optional<std::int64_t> expanded_bytes_max_;  // none: the file is not compressed
};

/// True if a file starts with gzip's magic number.
bool is_gzip(const std::string& path);

/// Returns the largest accepted size of a gzip file's uncompressed data.
std::int64_t expanded_gzip_bytes_max(const std::string& path);

/// Returns the uncompressed bytes of a file. Throws as SequentialFile does.
std::string read_all(const std::string& path);

}  // namespace accel
