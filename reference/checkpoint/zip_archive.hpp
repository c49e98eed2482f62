#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "reference/files/mapped_file.hpp"

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
  /// records, or a directory of more than 256 MiB. So the records together are never larger than the file.
  /// These and all functions below throw FileError if the file was shortened after it was opened.
  explicit ZipArchive(const std::string& path);
  /// A part of a file, which it must contain.
  struct Part {
    std::shared_ptr<const MappedFile> file = {};
    std::uint64_t begin = 0, size = 0;
  };
  /// An archive that is a part of a file. `name` takes the place of the path in errors.
  ZipArchive(Part part, std::string name);

  /// Path of the file, or the name of the part, for errors.
  [[nodiscard]] const std::string& path() const { return name_; }
  /// Whether the archive has a record. Names are without the folder.
  [[nodiscard]] bool contains(const std::string& name) const { return records_.contains(name); }
  /// Size of a record in bytes. Throws CheckpointError if it does not exist.
  [[nodiscard]] std::uint64_t size(const std::string& name) const { return at(name).size; }
  /// Bytes of a record. Throws CheckpointError if it does not exist, or if its checksum does not match.
  [[nodiscard]] std::string record(const std::string& name) const;
  /// Copies a record to memory of its size. Throws like `record`.
  void copy_out(const std::string& name, char* to) const;

 private:
  explicit ZipArchive(const std::shared_ptr<const MappedFile>& file);
  struct Record {
    std::uint64_t begin = 0, size = 0;  // of the data in the archive
    std::uint32_t checksum = 0;
  };
  struct Directory;
  [[nodiscard]] std::string read(std::uint64_t begin, std::uint64_t num_bytes, const std::string& what) const;
  [[nodiscard]] Directory read_end() const;
  void read_records(const Directory& directory);
  [[nodiscard]] const Record& at(const std::string& name) const;
  void check(const std::string& name, std::string_view bytes) const;

  Part part_;
  std::string name_;
  std::map<std::string, Record> records_;
  bool has_checksums_ = false;
};

}  // namespace accel::checkpoint
