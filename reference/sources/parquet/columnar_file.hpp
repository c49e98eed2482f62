#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "reference/files/mapped_file.hpp"

namespace arrow {
class RecordBatch;
class Schema;
namespace io {
class RandomAccessFile;
}  // namespace io
}  // namespace arrow

/// A file of columns: Parquet, an Arrow IPC file (Feather version 2), or an Arrow IPC stream. Its first bytes determine
/// which.
///
///     const auto file = open_columnar_file("train.parquet");
///     const auto batch = file->read(0, {file->schema().GetFieldIndex("label")});
///
/// Every failure is a ConfigError that names the file. Thread rule: any number of readers.
namespace accel::sources {

class ColumnarFile {
 public:
  explicit ColumnarFile(const std::string& path);
  virtual ~ColumnarFile() = default;
  ColumnarFile(const ColumnarFile&) = delete;
  ColumnarFile& operator=(const ColumnarFile&) = delete;

  [[nodiscard]] const std::string& path() const { return file_.path(); }
  [[nodiscard]] const arrow::Schema& schema() const { return *schema_; }
  /// Rows of each row group of Parquet, or of each record batch of Arrow.
  [[nodiscard]] const std::vector<std::int64_t>& group_sizes() const { return group_sizes_; }
  /// Returns the number of nulls that the file records for a column; 0 if it records none.
  [[nodiscard]] virtual std::int64_t recorded_nulls(int) const { return 0; }

  /// Returns some columns of a group, in this order. Their values are valid, but may be null. Throws ConfigError,
  /// also if the file was shortened after it was opened.
  [[nodiscard]] std::shared_ptr<arrow::RecordBatch> read(int group, const std::vector<int>& columns) const;

 protected:
  [[nodiscard]] const MappedFile& file() const { return file_; }
  /// Returns a reader of the file's bytes. It must not outlive this object.
  [[nodiscard]] std::shared_ptr<arrow::io::RandomAccessFile> source() const;
  /// Returns a group with at least these columns, which are sorted.
  [[nodiscard]] virtual std::shared_ptr<arrow::RecordBatch> read_group(int group,
                                                                       const std::vector<int>& columns) const = 0;
  std::shared_ptr<arrow::Schema> schema_;
  std::vector<std::int64_t> group_sizes_;

 private:
  MappedFile file_;
};

/// Throws ConfigError if the file cannot be opened, has another format or is damaged.
std::unique_ptr<const ColumnarFile> open_columnar_file(const std::string& path);

}  // namespace accel::sources
