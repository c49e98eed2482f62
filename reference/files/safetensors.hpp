#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/files/files.hpp"
#include "reference/files/mapped_file.hpp"
#include "reference/files/stored_tensor.hpp"

/// Reading and writing of safetensors files. The header of a file is read and checked completely, its tensors are read
/// only on request.
///
///     const accel::SafetensorsFile file("model.safetensors");
///     for (const auto& name : file.names()) load(name, file.tensor(name));
///     accel::write_safetensors(files, "model.safetensors", {{"weight", weight}}, {{"format", "pt"}});
///
/// Thread rule: any number of readers; copies share the open file.
/// Source: safetensors/src/tensor.rs, Metadata::validate; this class rejects every file that it rejects.
namespace accel {

// The dtypes of safetensors files.
//
//     safetensors_format("BF16")->dtype == at::kBFloat16
//
// Thread rule: pure functions. Source: safetensors/src/tensor.rs, Dtype.

struct SafetensorsFormat {
  std::string name = {};                     // as spelled in the file
  std::int64_t bits;                         // per element
  std::optional<at::ScalarType> dtype = {};  // none if an element is smaller than a byte
};

/// Returns all dtypes in the order in which the reference implementation writes tensors: the widest first.
const std::vector<SafetensorsFormat>& safetensors_formats();
/// Returns the entry of a dtype, or null if the format lacks it.
const SafetensorsFormat* safetensors_format(std::string_view name);
const SafetensorsFormat* safetensors_format(at::ScalarType dtype);

class SafetensorsFile {
 public:
  /// Throws ConfigError, which names the file and, if one is at fault, the tensor: a header that is truncated or not
  /// JSON, a header of more than 100 MB, a shape of more than 64 dimensions, a duplicate key, an unknown dtype, or
  /// offsets that are outside the file, overlap, leave a gap or do not
  /// match dtype and shape.
  explicit SafetensorsFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->path(); }
  /// Names in the order of the data.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] bool contains(const std::string& name) const { return entries_.contains(name); }
  /// The `__metadata__` entry of the header.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Returns the location of a tensor without reading it. Throws ConfigError, which lists the available names, if there
  /// is no such tensor, or if its elements are smaller than a byte (F4, F6_E2M3, F6_E3M2), which no LibTorch dtype
  /// stores.
  [[nodiscard]] StoredTensor stored(const std::string& name) const;
  /// Returns a copy of a tensor in memory; throws as `stored` does, and FileError if the file cannot be read or was
  /// shortened after it was opened.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const { return stored(name).load(); }

 private:
  struct Entry {
    std::string dtype = {};  // as spelled in the file
    std::vector<std::int64_t> sizes = {};
    std::int64_t begin = 0, end = 0;  // offsets in the data, which follow the header
  };
  void read_header();
  void check_layout();

  std::shared_ptr<const MappedFile> file_;
  std::size_t data_begin_ = 0;  // offset of the data in the file
  std::map<std::string, Entry> entries_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file atomically, with the same bytes as safetensors.torch.save_file; several metadata entries are sorted by
/// key. Tensors that are not contiguous or not on the CPU are copied one at a time, so memory holds at most one copy.
/// Tensors that share memory are written separately (see `deduplicate_shared`).
/// Throws ArgumentError, before anything is written, for a duplicate name or a dtype that the format lacks.
void write_safetensors(Files& files, const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace accel
