#pragma once

#include <cstdint>
#include <memory>
#include <string>

struct gzFile_s;

/// A file read from its start to its end, in a fixed amount of memory; one that gzip wrote is inflated on the way.
///
/// Offsets count the bytes after inflation.
/// Thread rule: one thread at a time.
namespace accel {

class SequentialFile {
 public:
  /// Throws ConfigError that names the file if it cannot be opened.
  explicit SequentialFile(std::string path);

  /// Reads `num_bytes`, or what is left of them before the end of the file; returns their number.
  /// Throws ConfigError that names file and offset where gzip's data are damaged or cut short.
  std::int64_t read(char* data, std::int64_t num_bytes);
  /// Passes over `num_bytes`; false if the file ends before. Throws as `read`.
  bool skip(std::int64_t num_bytes);

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::int64_t offset() const { return offset_; }

 private:
  [[noreturn]] void throw_damaged() const;

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile_s*)> file_;
  std::int64_t offset_ = 0;
};

/// Whether a file begins as gzip's do.
bool is_gzip(const std::string& path);

}  // namespace accel
