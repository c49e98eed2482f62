#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "reference/sources/csv_file.hpp"

/// Datasets whose samples are records of CSV files. csv_file.hpp documents the accepted format.
///
///     accel::CsvDataset people("people.csv");                                    // std::map<std::string, std::string>
///     accel::CsvTensors table("table.csv", {.columns = {"height", "weight"}});   // (2) float32
///     accel::LabelledCsvTensors flowers("iris.csv", {.label = "species_id"});    // (4) float32, and an int64
///
/// Numbers have C's decimal format with optional surrounding spaces, independent of the locale. A field that is not a
/// number or does not fit its dtype throws a ConfigError, which names file, record, byte offset and column, when the
/// record is read. Thread rule: any number of readers.
namespace accel {

class CsvDataset {
 public:
  using Sample = std::map<std::string, std::string>;

  /// Throws as CsvFile does.
  explicit CsvDataset(const std::string& path, const CsvOptions& options = {})
      : CsvDataset(std::vector{path}, options) {}
  explicit CsvDataset(const std::vector<std::string>& paths, const CsvOptions& options = {}) : file_(paths, options) {}
  explicit CsvDataset(std::initializer_list<std::string> paths, const CsvOptions& options = {})
      : CsvDataset(std::vector(paths), options) {}

  [[nodiscard]] std::int64_t size() const { return file_.size(); }
  [[nodiscard]] const std::vector<std::string>& columns() const { return file_.columns(); }
  [[nodiscard]] Sample get(std::int64_t index) const;

 private:
  CsvFile file_;
};

struct CsvTensorsOptions {
  std::vector<std::string> columns = {};  ///< in this order; empty: all columns
  at::ScalarType dtype = at::kFloat;      ///< float32, float64 or int64
  CsvOptions csv = {};
};

struct LabelledCsvOptions {
  std::string label = {};                  ///< name of the label's column
  at::ScalarType label_dtype = at::kLong;  ///< float32, float64 or int64
  std::vector<std::string> columns = {};   ///< in this order; empty: all except the label
  at::ScalarType dtype = at::kFloat;
  CsvOptions csv = {};
};

namespace sources {

/// A selection of columns, as numbers of one dtype.
struct CsvNumbers {
  std::vector<std::size_t> columns = {};
  at::ScalarType dtype = at::kFloat;  // float32, float64 or int64

  /// Returns one row per record.
  [[nodiscard]] at::Tensor read(const CsvFile& file, const std::vector<std::int64_t>& records) const;
};

}  // namespace sources

class CsvTensors {
 public:
  explicit CsvTensors(const std::string& path, const CsvTensorsOptions& options = {})
      : CsvTensors(std::vector{path}, options) {}
  explicit CsvTensors(const std::vector<std::string>& paths, const CsvTensorsOptions& options = {});
  explicit CsvTensors(std::initializer_list<std::string> paths, const CsvTensorsOptions& options = {})
      : CsvTensors(std::vector(paths), options) {}

  [[nodiscard]] std::int64_t size() const { return file_.size(); }
  [[nodiscard]] at::Tensor get(std::int64_t index) const { return get_batch({index}).squeeze(0); }
  [[nodiscard]] at::Tensor get_batch(const std::vector<std::int64_t>& indices) const {
    return values_.read(file_, indices);
  }

 private:
  CsvFile file_;
  sources::CsvNumbers values_;
};

class LabelledCsvTensors {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  LabelledCsvTensors(const std::string& path, const LabelledCsvOptions& options)
      : LabelledCsvTensors(std::vector{path}, options) {}
  LabelledCsvTensors(const std::vector<std::string>& paths, const LabelledCsvOptions& options);
  LabelledCsvTensors(std::initializer_list<std::string> paths, const LabelledCsvOptions& options)
      : LabelledCsvTensors(std::vector(paths), options) {}

  [[nodiscard]] std::int64_t size() const { return file_.size(); }
  [[nodiscard]] Batch get(std::int64_t index) const;
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  CsvFile file_;
  sources::CsvNumbers values_, label_;
};

}  // namespace accel
