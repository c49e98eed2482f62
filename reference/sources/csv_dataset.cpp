// Conversion of CSV fields to numbers. Numbers are parsed when a record is read and not when the file is opened,
// so that opening a large file needs one scan and no memory for values.
#include "reference/sources/csv_dataset.hpp"

#include <ATen/ops/empty.h>

#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == std::string_view::npos ? std::string_view() : text.substr(begin, end - begin + 1);
}

// Returns nullopt if the text is not a number or does not fit. std::from_chars ignores the locale, unlike strtod,
// but rejects a leading '+' and reports underflow as out of range; both are handled here. A value that is too
// small for T is rounded to a denormal number or zero, as strtod does.
template <typename T>
std::optional<T> parse(std::string_view text) {
  text = trimmed(text);
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  const auto* const end = text.data() + text.size();
  T value{};
  auto [place, error] = std::from_chars(text.data(), end, value);
  if constexpr (std::is_floating_point_v<T>) {
    if (error == std::errc::result_out_of_range) {
      long double wide = 0;
      error = std::from_chars(text.data(), end, wide).ec;
      value = static_cast<T>(wide);
      if (std::isinf(value)) return std::nullopt;
    }
  }
  if (text.empty() || error != std::errc() || place != end) return std::nullopt;
  return value;
}

template <typename T>
// Writes into one tensor directly; a tensor per record and a stack would dominate the time for narrow tables.
at::Tensor read_numbers(const CsvFile& file, const std::vector<std::int64_t>& records,
                        const sources::CsvNumbers& numbers) {
  auto tensor = at::empty({std::ssize(records), std::ssize(numbers.columns)}, at::TensorOptions(numbers.dtype));
  auto* place = tensor.data_ptr<T>();
  for (const auto record : records) {
    const auto fields = file.fields(record);
    for (const auto column : numbers.columns) {
      const auto value = parse<T>(fields[column]);
      if (!value) {
        throw ConfigError(
            fmt::format("{}, column '{}': '{}' is not a number that fits {}; correct the field, or choose another "
                        "dtype or other columns",
                        file.where(record), file.columns()[column], fields[column], c10::toString(numbers.dtype)));
      }
      *place++ = *value;
    }
  }
  return tensor;
}

void check_dtype(at::ScalarType dtype) {
  const bool is_known = dtype == at::kFloat || dtype == at::kDouble || dtype == at::kLong;
  check_argument(is_known, "csv: dtype {} is unsupported; expected float32, float64 or int64", c10::toString(dtype));
}

sources::CsvNumbers choose(const CsvFile& file, const std::vector<std::string>& names, at::ScalarType dtype) {
  check_dtype(dtype);
  sources::CsvNumbers numbers{.dtype = dtype};
  for (const auto& name : names) numbers.columns.push_back(file.column(name));
  return numbers;
}

std::vector<std::string> all_but(std::vector<std::string> names, const std::string& name) {
  std::erase(names, name);
  return names;
}

}  // namespace

// The constructor's check_dtype guarantees that the dtype is one of these three.
at::Tensor sources::CsvNumbers::read(const CsvFile& file, const std::vector<std::int64_t>& records) const {
  if (dtype == at::kDouble) return read_numbers<double>(file, records, *this);
  if (dtype == at::kLong) return read_numbers<std::int64_t>(file, records, *this);
  return read_numbers<float>(file, records, *this);
}

CsvDataset::Sample CsvDataset::get(std::int64_t index) const {
  auto fields = file_.fields(index);
  Sample sample;
  for (std::size_t column = 0; column < fields.size(); ++column)
    sample[file_.columns()[column]] = std::move(fields[column]);
  return sample;
}

CsvTensors::CsvTensors(const std::vector<std::string>& paths, const CsvTensorsOptions& options)
    : file_(paths, options.csv),
      values_(choose(file_, options.columns.empty() ? file_.columns() : options.columns, options.dtype)) {}

LabelledCsvTensors::LabelledCsvTensors(const std::vector<std::string>& paths, const LabelledCsvOptions& options)
    : file_(paths, options.csv),
      values_(choose(file_, options.columns.empty() ? all_but(file_.columns(), options.label) : options.columns,
                     options.dtype)),
      label_(choose(file_, {options.label}, options.label_dtype)) {}

LabelledCsvTensors::Batch LabelledCsvTensors::get(std::int64_t index) const {
  const auto [values, labels] = get_batch({index});
  return {values.squeeze(0), labels.squeeze(0)};
}

LabelledCsvTensors::Batch LabelledCsvTensors::get_batch(const std::vector<std::int64_t>& indices) const {
  return {values_.read(file_, indices), label_.read(file_, indices).squeeze(1)};
}

}  // namespace accel
