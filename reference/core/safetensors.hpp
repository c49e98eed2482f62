#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/core/files.hpp"
#include "reference/core/mapped_file.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/core/stored_tensor.hpp"

/// A safetensors file, mapped: its header is read and checked whole, its tensors only as they are asked for. And one
/// written.
///
///     const accel::SafetensorsFile file("model.safetensors");
///     for (const auto& name : file.names()) load(name, file.tensor(name));
///     accel::write_safetensors(files, "model.safetensors", {{"weight", weight}}, {{"format", "pt"}});
///
/// Thread rule: any number of readers; copies share the mapping.
/// Source: safetensors/src/tensor.rs, Metadata::validate; what it refuses is refused here.
namespace accel {

// The dtypes of safetensors files.
//
//     safetensors_format("BF16")->dtype == at::kBFloat16
//
// Thread rule: pure functions. Source: safetensors/src/tensor.rs, Dtype.

struct SafetensorsFormat {
  std::string name = {};  // as the format spells it
  std::int64_t bits;
  std::optional<at::ScalarType> dtype = {};  // none where an element is a fraction of a byte
};

/// In the order in which the format's own writer lays tensors down: the widest first.
const std::vector<SafetensorsFormat>& safetensors_formats();
/// Null if there is none.
const SafetensorsFormat* safetensors_format(std::string_view name);
const SafetensorsFormat* safetensors_format(at::ScalarType dtype);

class SafetensorsFile {
 public:
  /// Throws ConfigError that names the file, and the tensor where one is at fault: a header that is cut short or no
  /// JSON, a key given twice, an unknown dtype, offsets outside of the file, that overlap or leave a hole, or that do
  /// not hold just what dtype and shape need.
  explicit SafetensorsFile(const std::string& path);

  [[nodiscard]] const std::string& path() const { return file_->path(); }
  /// In the order of their data.
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] bool contains(const std::string& name) const { return entries_.contains(name); }
  /// The header's `__metadata__`.
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }

  /// Where a tensor lies. Throws ConfigError that tells the names there are if it is not there, or if its elements are
  /// fractions of a byte (F4, F6_E2M3, F6_E3M2), which no tensor of LibTorch holds one by one.
  [[nodiscard]] StoredTensor stored(const std::string& name) const;
  /// A copy in memory; throws as `stored`.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const { return stored(name).load(); }

 private:
  struct Entry {
    std::string dtype = {};  // as the format spells it
    std::vector<std::int64_t> sizes = {};
    std::int64_t begin = 0, end = 0;  // in the data, which follows the header
  };
  void read_header();
  void check_layout();

  std::shared_ptr<const MappedFile> file_;
  std::string_view data_;
  std::map<std::string, Entry> entries_;
  std::vector<std::string> names_;
  std::map<std::string, std::string> metadata_;
};

/// Writes a file, atomically, byte for byte as safetensors.torch.save_file does; with several entries of metadata they
/// are sorted. A tensor that is not dense, or not in this memory, is copied on its own, so that no more than one is
/// copied at a time. Tensors that share memory are written each (see `without_shared`). Throws ArgumentError, before
/// anything is written, for a name given twice, or a tensor that the format does not have.
void write_safetensors(Files& files, const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace accel
