#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// What a checkpoint folder holds. It is written last, and only then does the folder get its name: a folder with a
/// manifest is whole.
///
///     {"version": 1, "world_size": 4,
///      "files": [{"name": "model.safetensors", "bytes": 1234, "xxh3_64": "0f3c..."}, ...]}
///
/// Thread rule: values; pure functions, and readers of files.
namespace accel::checkpoint {

/// XXH3, 64 bits, of bytes given piece by piece: finds damage, not malice.
class Checksum {
 public:
  Checksum();
  void update(std::string_view bytes);
  /// 16 hexadecimal digits.
  [[nodiscard]] std::string hex() const;

 private:
  std::shared_ptr<void> state_;
};

inline constexpr const char* kManifestName = "accel_manifest.json";

struct ManifestEntry {
  std::string name = {};  ///< within the folder
  std::int64_t bytes = 0;
  std::string checksum = {};  ///< XXH3, 64 bits, as 16 hexadecimal digits: what `xxhsum -H3` prints
};

struct Manifest {
  int world_size = 1;  ///< ranks that saved
  std::vector<ManifestEntry> files = {};

  [[nodiscard]] bool lists(const std::string& name) const;
};

[[nodiscard]] std::string to_json(const Manifest& manifest);
/// Throws CheckpointError that names `path`, where the text is from.
[[nodiscard]] Manifest manifest_of(const std::string& json, const std::string& path);

/// The manifest of a folder; nothing where there is none, as in one that Python wrote. Throws CheckpointError with
/// every file of it that is missing, of another size or another content; the content is read for `verify`.
[[nodiscard]] std::optional<Manifest> read_manifest(const std::string& folder, bool verify = true);

}  // namespace accel::checkpoint
