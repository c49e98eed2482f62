#include "reference/sources/safetensors_dataset.hpp"

#include <ATen/ops/empty.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace sources {
namespace {

// Shards may differ in their number of rows, so dimension 0 is not compared.
bool rows_fit(const StoredTensor& a, const StoredTensor& b) {
  return a.dtype == b.dtype && std::equal(a.sizes.begin() + 1, a.sizes.end(), b.sizes.begin() + 1, b.sizes.end());
}

// As in "Float [28, 28]".
std::string row_text(const StoredTensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.dtype),
                     fmt::join(tensor.sizes.begin() + 1, tensor.sizes.end(), ", "));
}

}  // namespace

// All shards are opened and compared at once, so that a wrong file is an error at start and not in the middle of
// an epoch. Opening reads only the headers.
SafetensorsRows::SafetensorsRows(const std::vector<std::string>& paths, std::vector<std::string> names)
    : names_(std::move(names)), reads_all_(names_.empty()) {
  check_argument(!paths.empty(), "safetensors: no files; expected at least one");
  for (const auto& path : paths) add_shard(path);
}

void SafetensorsRows::add_shard(const std::string& path) {
  const SafetensorsFile file(path);
  if (names_.empty()) names_ = file.names();
  check_config(!names_.empty(), "{}: the file has no tensors; expected at least one", path);
  auto others = reads_all_ ? file.names() : std::vector<std::string>();
  std::erase_if(others,
                [&](const auto& name) { return std::find(names_.begin(), names_.end(), name) != names_.end(); });
  if (!others.empty())
    warn_once(fmt::format("{}: skips {}, which the first file lacks; choose names, or read the files separately", path,
                          listed(others, ", ")));
  std::vector<StoredTensor> tensors;
  for (const auto& name : names_) {
    const auto& tensor = tensors.emplace_back(file.stored(name));
    check_config(!tensor.sizes.empty(), "{}: tensor '{}' has no dimensions; expected (rows, ...)", path, name);
    const auto num_rows = tensor.sizes.front(), num_expected = tensors.front().sizes.front();
    check_config(num_rows == num_expected, "{}: tensor '{}' has {} rows, but '{}' has {}; expected equal numbers", path,
                 name, num_rows, names_.front(), num_expected);
    if (shards_.empty()) continue;
    const auto& first = shards_.front()[tensors.size() - 1];
    check_config(
        rows_fit(tensor, first),
        "{}: tensor '{}' differs in dtype or row shape from that of the first file: expected rows of {}, got {}", path,
        name, row_text(first), row_text(tensor));
  }
  begins_.push_back(begins_.back() + tensors.front().sizes.front());
  shards_.push_back(std::move(tensors));
}

// begins_ ends with the total number of rows, so upper_bound always finds an entry. Empty shards are skipped
// because upper_bound returns the last shard that starts at or before the index.
SafetensorsRows::Place SafetensorsRows::place_of(std::int64_t index) const {
  check_argument(index >= 0 && index < size(),
                 "safetensors: row {} is out of range for {} rows; expected 0 or more and less than {}", index, size(),
                 size());
  const auto shard = std::upper_bound(begins_.begin(), begins_.end(), index) - begins_.begin() - 1;
  return {static_cast<std::size_t>(shard), index - begins_[shard]};
}

at::Tensor SafetensorsRows::get(std::size_t name, std::int64_t index) const {
  const auto place = place_of(index);
  return shards_[place.shard][name].row(place.row);
}

// A single shard copies the rows in one pass; with several shards each row may come from another file.
at::Tensor SafetensorsRows::get_batch(std::size_t name, const std::vector<std::int64_t>& indices) const {
  if (shards_.size() == 1) return shards_.front()[name].rows(indices);
  const auto& first = shards_.front()[name];
  auto sizes = first.sizes;
  sizes.front() = static_cast<std::int64_t>(indices.size());
  auto batch = at::empty(sizes, at::TensorOptions(first.dtype));
  for (std::int64_t place = 0; place < sizes.front(); ++place) batch.select(0, place).copy_(get(name, indices[place]));
  return batch;
}

}  // namespace sources

SafetensorsTable::Batch SafetensorsTable::get(std::int64_t index) const {
  Batch sample;
  for (std::size_t name = 0; name < rows_.names().size(); ++name) sample[rows_.names()[name]] = rows_.get(name, index);
  return sample;
}

SafetensorsTable::Batch SafetensorsTable::get_batch(const std::vector<std::int64_t>& indices) const {
  Batch batch;
  for (std::size_t name = 0; name < rows_.names().size(); ++name)
    batch[rows_.names()[name]] = rows_.get_batch(name, indices);
  return batch;
}

}  // namespace accel
