#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/sources/parquet/column_type.hpp"
#include "reference/sources/parquet/columnar_file.hpp"
#include "reference/sources/parquet/parquet_dataset.hpp"
#include "reference/sources/parquet/row_group_cache.hpp"
#include "reference/sources/parquet/row_group_plan.hpp"

namespace accel::sources {

/// The rows of chosen columns over several files, and the decoded row groups: what copies of a ParquetDataset share.
/// Thread rule: any thread.
class ParquetRows {
 public:
  /// Throws as the constructor of ParquetDataset does.
  ParquetRows(const std::vector<std::string>& paths, const ParquetOptions& options);

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] const RowGroupPlan& plan() const { return plan_; }
  [[nodiscard]] ParquetBatch get_batch(const std::vector<std::int64_t>& indices);

 private:
  // One column of a row group.
  struct Column {
    at::Tensor tensor;
    std::shared_ptr<arrow::Array> strings;  // null for a tensor
  };
  using Columns = std::vector<Column>;

  void add_file(const std::string& path, std::vector<std::string>& problems);
  void warn_of_others(const ColumnarFile& file) const;
  [[nodiscard]] Columns read(std::size_t group) const;
  [[nodiscard]] ParquetBatch empty_batch(std::int64_t num_rows) const;

  std::vector<std::string> names_;
  bool reads_all_;                                // of the first file
  std::vector<std::optional<ColumnType>> types_;  // of names_ in the first file; the constructor rejects nullopt
  std::vector<std::unique_ptr<const ColumnarFile>> files_;
  std::vector<std::vector<int>> columns_;  // of each file, the numbers of names_
  RowGroupPlan plan_;
  RowGroupCache<Columns> cache_;  // its strings refer to files_
};

}  // namespace accel::sources
