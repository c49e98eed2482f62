#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/files/stored_tensor.hpp"

/// The idx files of MNIST and similar data sets: one dense array per file, plain or .gz.
///
///     accel::IdxDataset train("train-images-idx3-ubyte", "train-labels-idx1-ubyte");
///     accel::DataLoader loader(train, {.batch_size = 32, .shuffle = true});   // (B, 28, 28) uint8, (B) int64
///
/// The rows of a plain file are read on request; a read throws FileError if the file was shortened. gzip supports no
/// random access, so a .gz file is decompressed into memory when it is opened; copies share the memory. Thread rule:
/// any number of readers.
namespace accel {

struct IdxHeader {
  at::ScalarType dtype = at::kByte;      ///< uint8, int8, int16, int32, float32 or float64
  std::vector<std::int64_t> sizes = {};  ///< at least one dimension

  [[nodiscard]] std::int64_t num_bytes() const { return 4 + 4 * static_cast<std::int64_t>(sizes.size()); }
};

/// Throws ConfigError, which names the file, if it does not start like an idx file.
IdxHeader read_idx_header(const std::string& path);

struct IdxOptions {
  std::optional<std::int64_t> limit =
      std::nullopt;  ///< maximal number of rows; only these are decompressed from a .gz file
};

/// Opens the array of a file. Throws ConfigError, which names the file and the expected and actual number of bytes, if
/// it is truncated or damaged, or longer than its header specifies.
StoredTensor open_idx(const std::string& path, const IdxOptions& options = {});

/// A dataset that pairs the rows of two files, usually images and labels.
class IdxDataset {
 public:
  using Batch = std::tuple<at::Tensor, at::Tensor>;

  /// Throws ConfigError as open_idx does, and if the files have different numbers of rows.
  IdxDataset(const std::string& images, const std::string& labels, const IdxOptions& options = {});

  [[nodiscard]] std::int64_t size() const { return images_.sizes.front(); }
  /// Returns the image in its stored dtype and the label as int64, or in its stored dtype if that is floating-point.
  [[nodiscard]] Batch get(std::int64_t index) const;
  [[nodiscard]] Batch get_batch(const std::vector<std::int64_t>& indices) const;

 private:
  StoredTensor images_, labels_;
};

}  // namespace accel
