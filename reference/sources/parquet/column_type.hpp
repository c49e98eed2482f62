#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace arrow {
class Array;
class DataType;
}  // namespace arrow

/// How a column of an Arrow table becomes a tensor or strings. Thread rule: plain functions on values.
namespace accel::sources {

struct ColumnType {
  bool is_string = false;  // if true, the other members have no meaning
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> row_sizes = {};  // of fixed-size lists, the outermost first

  /// As in "Float [28, 28]", or "string".
  [[nodiscard]] std::string text() const;
  friend bool operator==(const ColumnType&, const ColumnType&) = default;
};

/// Booleans, integers and floating-point numbers become tensors of their dtype, and fixed-size lists of at least one of
/// them rows. Text, bytes and dictionaries of these become strings. Returns nullopt for other types.
std::optional<ColumnType> column_type_of(const arrow::DataType& type);

/// Returns the number of null values in an array, in the lists of it, and in the dictionary of it.
std::int64_t count_nulls(const arrow::Array& array);

/// Returns a copy of an array of numbers without nulls: (length, row_sizes ...).
at::Tensor tensor_of(const arrow::Array& array, const ColumnType& type);

/// Returns entry `row` of an array of strings.
std::string string_of(const arrow::Array& array, std::int64_t row);

}  // namespace accel::sources
