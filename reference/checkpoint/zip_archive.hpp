#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "reference/core/mapped_file.hpp"

/// A zip archive as torch.save writes it: records that are stored as they are, in one folder.
///
///     const ZipArchive archive("optimizer.bin");
///     const auto pickled = archive.record("data.pkl");
///
/// Thread rule: any number of readers.
namespace accel::checkpoint {

class ZipArchive {
 public:
  /// Throws CheckpointError that names the file if it is no archive, is cut short, has compressed records, or records
  /// that overlap: what records hold together is never more than the file.
  explicit ZipArchive(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->path(); }
  [[nodiscard]] const std::shared_ptr<const MappedFile>& file() const { return file_; }
  /// Names are without the folder.
  [[nodiscard]] bool contains(const std::string& name) const { return records_.contains(name); }
  /// Throws CheckpointError if there is none.
  [[nodiscard]] std::uint64_t size(const std::string& name) const { return at(name).bytes.size(); }
  /// Its bytes in the mapping. Throws CheckpointError if there is none, or if its checksum does not fit.
  [[nodiscard]] std::string_view record(const std::string& name) const;
  /// Copies it to memory of its size, and lets go of the file's pages. Throws as `record`.
  void copy_out(const std::string& name, char* to) const;
  /// Where it is, without a look at its content.
  [[nodiscard]] std::string_view unchecked(const std::string& name) const { return at(name).bytes; }

 private:
  struct Record {
    std::string_view bytes = {};
    std::uint32_t checksum = 0;
  };
  struct Directory;
  void read_records(const Directory& directory);
  [[nodiscard]] const Record& at(const std::string& name) const;
  void check(const std::string& name, std::string_view bytes) const;

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Record> records_;
  bool has_checksums_ = false;
};

}  // namespace accel::checkpoint
