#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "reference/tree/tree.hpp"

/// A dataset whose samples are the rows of Parquet files, Arrow IPC files (Feather version 2) or Arrow IPC streams.
///
///     accel::ParquetDataset dataset({"a.parquet", "b.parquet"}, {.columns = {"image", "label"}});
///     accel::DataLoader loader(dataset, {.batch_size = 32});
///     for (auto& batch : loader) train(batch.tensors.at("image"), batch.tensors.at("label"));
///
/// Columns of booleans, integers and floating-point numbers are tensors of their dtype, and fixed-size lists of them
/// have the shape (rows, size ...). Text, bytes and dictionaries of these are std::string. Other types and nulls are
/// errors.
///
/// A row group of Parquet, or a record batch of Arrow, is decoded as a unit, and the ones used last stay in memory. A
/// pass in the order of the files decodes each once. A shuffled pass decodes a row group for nearly every row, unless
/// `cached_row_groups` covers all row groups: then the chosen columns are in memory.
/// Thread rule: any number of readers, which decode different row groups at the same time; copies share the memory.
namespace accel {

struct ParquetOptions {
  std::vector<std::string> columns = {};  ///< empty: all columns of the first file; a warning names others
  std::int64_t cached_row_groups = 4;     ///< decoded row groups that are kept: at least one per thread that reads
};

/// One row. A number is a tensor without dimensions.
struct ParquetSample {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::string> strings = {};
};

/// Some rows. Tensors have the shape (rows, ...).
struct ParquetBatch {
  std::map<std::string, at::Tensor> tensors = {};
  std::map<std::string, std::vector<std::string>> strings = {};
};

template <>
inline constexpr auto tree_members<ParquetSample> = std::tuple(&ParquetSample::tensors, &ParquetSample::strings);
template <>
inline constexpr auto tree_members<ParquetBatch> = std::tuple(&ParquetBatch::tensors, &ParquetBatch::strings);

namespace sources {
class ParquetRows;
}

class ParquetDataset {
 public:
  /// Opens the files and compares their columns. Throws ConfigError, which lists all problems with file and column: a
  /// column that is missing, has an unsupported type, nulls, or another type than in the first file. Throws ConfigError
  /// for a file that cannot be read, and ArgumentError without files or for fewer than one cached row group.
  explicit ParquetDataset(const std::vector<std::string>& paths, const ParquetOptions& options = {});
  explicit ParquetDataset(const std::string& path, const ParquetOptions& options = {})
      : ParquetDataset(std::vector{path}, options) {}
  explicit ParquetDataset(std::initializer_list<std::string> paths, const ParquetOptions& options = {})
      : ParquetDataset(std::vector(paths), options) {}

  [[nodiscard]] std::int64_t size() const;
  /// Returns the names of the chosen columns.
  [[nodiscard]] const std::vector<std::string>& columns() const;
  /// Number of row groups in all files.
  [[nodiscard]] std::int64_t num_row_groups() const;
  /// Both throw ArgumentError for an index that does not exist, and ConfigError, which names the file, if a row group
  /// is damaged or contains nulls that the file does not record.
  [[nodiscard]] ParquetSample get(std::int64_t index) const;
  [[nodiscard]] ParquetBatch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  std::shared_ptr<sources::ParquetRows> rows_;
};

}  // namespace accel
