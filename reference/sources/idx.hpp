#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/core/stored_tensor.hpp"

/// The idx files of MNIST and its kin: one dense array a file, plain or .gz.
///
///     accel::IdxDataset train("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
///     accel::DataLoader loader(train, {.batch_size = 32, .shuffle = true});   // (B, 28, 28) uint8, (B) int64
///
/// A plain file is mapped, and its rows are read as they are asked for. gzip has no way to a row but from the start, so
/// a .gz file is inflated into memory, once, when it is opened; copies share it. Thread rule: any number of readers.
namespace accel {

struct IdxHeader {
  at::ScalarType dtype = at::kByte;      ///< uint8, int8, int16, int32, float32 or float64
  std::vector<std::int64_t> sizes = {};  ///< at least one dimension

  [[nodiscard]] std::int64_t num_bytes() const { return 4 + 4 * static_cast<std::int64_t>(sizes.size()); }
};

/// Throws ConfigError that names the file if it does not begin as an idx file does.
IdxHeader read_idx_header(const std::string& path);

struct IdxOptions {
  std::optional<std::int64_t> limit = std::nullopt;  ///< rows; of a .gz file no more are inflated
};

/// The array of one file. Throws ConfigError that names the file, with the bytes expected and those there, if it is
/// short or damaged, or longer than its header says.
StoredTensor open_idx(const std::string& path, const IdxOptions& options = {});

/// Samples are a row of one file and the row of the same number of another: images and labels, usually.
class IdxDataset {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  /// Throws ConfigError as open_idx, and if the files differ in their number of rows.
  IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return images_.sizes.front(); }
  /// The image as it is stored; the label as int64, or as it is stored where it is a floating number.
  [[nodiscard]] Batch get(std::int64_t index) const;
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  StoredTensor images_, labels_;
};

}  // namespace accel
