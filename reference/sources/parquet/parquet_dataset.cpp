#include "reference/sources/parquet/parquet_dataset.hpp"

#include <iterator>
#include <utility>

#include "reference/sources/parquet/parquet_rows.hpp"

namespace accel {

ParquetDataset::ParquetDataset(const std::vector<std::string>& paths, const ParquetOptions& options)
    : rows_(std::make_shared<sources::ParquetRows>(paths, options)) {}

std::int64_t ParquetDataset::size() const { return rows_->plan().num_rows(); }

const std::vector<std::string>& ParquetDataset::columns() const { return rows_->names(); }

std::int64_t ParquetDataset::num_row_groups() const { return std::ssize(rows_->plan().groups()); }

ParquetSample ParquetDataset::get(std::int64_t index) const {
  auto batch = get_batch({index});
  ParquetSample sample;
  for (const auto& [name, tensor] : batch.tensors) sample.tensors[name] = tensor.squeeze(0);
  for (auto& [name, strings] : batch.strings) sample.strings[name] = std::move(strings.front());
  return sample;
}

ParquetBatch ParquetDataset::get_batch(const std::vector<std::int64_t>& indices) const {
  return rows_->get_batch(indices);
}

}  // namespace accel
