#include "reference/sources/parquet/parquet_rows.hpp"

#include <ATen/ops/empty.h>
#include <arrow/array.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/warnings.hpp"

namespace accel::sources {
namespace {

// Works on bytes, because at::index_select lacks the unsigned dtypes.
void copy_rows(const at::Tensor& group, const RowGroupRead& read, at::Tensor& batch) {
  const auto row_bytes = batch.nbytes() / static_cast<std::size_t>(batch.size(0));
  const auto* from = static_cast<const char*>(group.const_data_ptr());
  auto* to = static_cast<char*>(batch.mutable_data_ptr());
  for (std::size_t i = 0; i < read.rows.size(); ++i)
    std::memcpy(to + read.places[i] * row_bytes, from + read.rows[i] * row_bytes, row_bytes);
}

std::size_t checked_capacity(const ParquetOptions& options) {
  check_argument(options.cached_row_groups >= 1, "parquet: cached_row_groups {}; expected 1 or more",
                 options.cached_row_groups);
  return static_cast<std::size_t>(options.cached_row_groups);
}

// Returns the problem of a column of one file, or "".
std::string problem_of(const ColumnarFile& file, int column, const std::optional<ColumnType>& type,
                       const std::optional<ColumnType>& expected) {
  if (!type) {
    return fmt::format(
        "the type {} is unsupported; expected bool, integers, floating-point numbers, fixed-size lists of these, text "
        "or bytes; convert the column, or choose other columns",
        file.schema().field(column)->type()->ToString());
  }
  if (expected && *type != *expected)
    return fmt::format("rows of {}; expected rows of {} as in the first file", type->text(), expected->text());
  const auto nulls = file.recorded_nulls(column);
  return nulls == 0 ? "" : fmt::format("{} nulls; expected none: fill them, or choose other columns", nulls);
}

}  // namespace

ParquetRows::ParquetRows(const std::vector<std::string>& paths, const ParquetOptions& options)
    : names_(options.columns), reads_all_(names_.empty()), cache_(checked_capacity(options)) {
  check_argument(!paths.empty(), "parquet: no files; expected at least one");
  std::vector<std::string> problems;
  for (const auto& path : paths) add_file(path, problems);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
}

// A file that cannot be read is a problem as well, so that one message lists all of them.
void ParquetRows::add_file(const std::string& path, std::vector<std::string>& problems) {
  std::unique_ptr<const ColumnarFile> file;
  try {
    file = open_columnar_file(path);
  } catch (const ConfigError& error) {
    problems.emplace_back(error.what());
    return;
  }
  if (names_.empty()) names_ = file->schema().field_names();
  if (reads_all_) warn_of_others(*file);
  std::vector<int> columns;
  const bool is_first = types_.empty();
  for (std::size_t name = 0; name < names_.size(); ++name) {
    const auto add_problem = [&](const std::string& problem) {
      if (!problem.empty()) problems.push_back(fmt::format("{}, column '{}': {}", path, names_[name], problem));
    };
    const auto found = file->schema().GetAllFieldIndices(names_[name]);
    columns.push_back(found.size() == 1 ? found.front() : -1);
    std::optional<ColumnType> type;
    if (found.size() == 1) {
      type = column_type_of(*file->schema().field(found.front())->type());
      add_problem(problem_of(*file, found.front(), type, is_first ? std::nullopt : types_[name]));
    } else if (found.empty()) {
      add_problem(fmt::format("absent; the columns are {}", fmt::join(file->schema().field_names(), ", ")));
    } else {
      add_problem("the name of several columns; expected unique names");
    }
    if (is_first) types_.push_back(type);
  }
  if (names_.empty()) problems.push_back(fmt::format("{}: the file has no columns; expected at least one", path));
  for (std::size_t group = 0; group < file->group_sizes().size(); ++group)
    plan_.add({.file = files_.size(), .number = static_cast<int>(group), .num_rows = file->group_sizes()[group]});
  files_.push_back(std::move(file));
  columns_.push_back(std::move(columns));
}

void ParquetRows::warn_of_others(const ColumnarFile& file) const {
  auto others = file.schema().field_names();
  std::erase_if(others,
                [&](const auto& name) { return std::find(names_.begin(), names_.end(), name) != names_.end(); });
  if (!others.empty())
    warn_once(fmt::format("{}: skips {}, which the first file lacks; choose columns, or read the files separately",
                          file.path(), listed(others, ", ")));
}

ParquetRows::Columns ParquetRows::read(std::size_t group) const {
  const auto& [file, number, num_rows] = plan_.groups()[group];
  const auto batch = files_[file]->read(number, columns_[file]);
  std::vector<std::string> problems;
  Columns columns;
  for (std::size_t name = 0; name < names_.size(); ++name) {
    const auto array = batch->column(static_cast<int>(name));
    if (const auto nulls = count_nulls(*array); nulls > 0) {
      problems.push_back(
          fmt::format("{}, column '{}', row group {}: {} nulls; expected none: fill them, or choose other "
                      "columns",
                      files_[file]->path(), names_[name], number, nulls));
    } else if (types_[name]->is_string) {
      columns.push_back({.strings = array});
    } else {
      columns.push_back({.tensor = tensor_of(*array, *types_[name])});
    }
  }
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return columns;
}

ParquetBatch ParquetRows::empty_batch(std::int64_t num_rows) const {
  ParquetBatch batch;
  for (std::size_t name = 0; name < names_.size(); ++name) {
    if (types_[name]->is_string) {
      batch.strings[names_[name]].resize(num_rows);
    } else {
      auto sizes = types_[name]->row_sizes;
      sizes.insert(sizes.begin(), num_rows);
      batch.tensors[names_[name]] = at::empty(sizes, at::TensorOptions(types_[name]->dtype));
    }
  }
  return batch;
}

// The batch is allocated after a row group was read: a damaged file may have lists of any size, which reading rejects.
ParquetBatch ParquetRows::get_batch(const std::vector<std::int64_t>& indices) {
  std::optional<ParquetBatch> batch;
  for (const auto& rows : plan_.reads_of(indices)) {
    const auto columns = cache_.get(rows.group, [&] { return read(rows.group); });
    if (!batch) batch = empty_batch(std::ssize(indices));
    for (std::size_t name = 0; name < names_.size(); ++name) {
      const auto& [tensor, strings] = (*columns)[name];
      if (strings == nullptr) {
        copy_rows(tensor, rows, batch->tensors.at(names_[name]));
        continue;
      }
      auto& texts = batch->strings.at(names_[name]);
      for (std::size_t i = 0; i < rows.rows.size(); ++i) texts[rows.places[i]] = string_of(*strings, rows.rows[i]);
    }
  }
  return batch ? *std::move(batch) : empty_batch(0);
}

}  // namespace accel::sources
