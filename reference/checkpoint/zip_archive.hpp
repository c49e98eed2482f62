#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "reference/core/mapped_file.hpp"

/// Reads a zip archive as torch.save writes it: uncompressed records in one folder.
///
///     const ZipArchive archive("optimizer.bin");
///     const auto pickled = archive.record("data.pkl");
///
/// Thread rule: any number of readers.
namespace accel::checkpoint {

class ZipArchive {
 public:
  /// Throws CheckpointError that names the file if it is not an archive, is truncated, or has compressed or overlapping
  /// records. So the records together are never larger than the file.
  explicit ZipArchive(const std::string& path);
  /// An archive that is a part of a file: `bytes`, a part of its bytes. `name` takes the place of the path in errors.
  ZipArchive(std::shared_ptr<const MappedFile> file, std::string_view bytes, std::string name);

  /// Path of the file, or the name of the part, for errors.
  [[nodiscard]] const std::string& path() const { return name_; }
  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  /// Whether the archive has a record. Names are without the folder.
  [[nodiscard]] bool contains(const std::string& name) const { return records_.contains(name); }
  /// Size of a record in bytes. Throws CheckpointError if it does not exist.
  [[nodiscard]] std::uint64_t size(const std::string& name) const { return at(name).bytes.size(); }
  /// Bytes of a record in the mapping. Throws CheckpointError if it does not exist, or if its checksum does not match.
  [[nodiscard]] std::string_view record(const std::string& name) const;
  /// Copies a record to memory of its size and releases the file's pages. Throws like `record`.
  void copy_out(const std::string& name, char* to) const;
  /// Bytes of a record, without reading them to verify the checksum.
  [[nodiscard]] std::string_view unchecked(const std::string& name) const { return at(name).bytes; }

 private:
  explicit ZipArchive(const std::shared_ptr<const MappedFile>& file);
  struct Record {
    std::string_view bytes = {};
    std::uint32_t checksum = 0;
  };
  struct Directory;
  void read_records(const Directory& directory);
  [[nodiscard]] const Record& at(const std::string& name) const;
  void check(const std::string& name, std::string_view bytes) const;

  std::shared_ptr<const MappedFile> file_;
  std::string_view bytes_;
  std::string name_;
  std::map<std::string, Record> records_;
  bool has_checksums_ = false;
};

}  // namespace accel::checkpoint
