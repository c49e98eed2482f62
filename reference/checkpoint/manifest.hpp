#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The list of files in a checkpoint folder. It is written last, before the folder gets its final name, so a folder
/// with a manifest is complete.
///
///     {"version": 1, "world_size": 4,
///      "files": [{"name": "model.safetensors", "bytes": 1234, "xxh3_64": "0f3c..."}, ...],
///      "xxh3_64": "9a41..."}
///
/// The last entry is the checksum of the others, as JSON without spaces, so that damage to the manifest is found, too.
///
/// Thread rule: any thread.
namespace accel::checkpoint {

/// XXH3 with 64 bits, computed incrementally. Detects damage, not manipulation.
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
  std::string name = {};  ///< path within the folder
  std::int64_t bytes = 0;
  std::string checksum = {};  ///< XXH3, 64 bits, as 16 hexadecimal digits, as `xxhsum -H3` prints it
};

struct Manifest {
  int world_size = 1;  ///< number of ranks that saved
  std::vector<ManifestEntry> files = {};
  int num_parts = 0;  ///< in the record of one rank's files: number of the records that make the checkpoint

  [[nodiscard]] bool lists(const std::string& name) const;
};

[[nodiscard]] std::string to_json(const Manifest& manifest);
/// Parses a manifest. Throws CheckpointError that names `path`, the origin of the text.
[[nodiscard]] Manifest manifest_of(const std::string& json, const std::string& path);

/// Returns a line for each file of a folder that is missing, or has another size or content than in the manifest.
/// Contents are read only with `verify`.
[[nodiscard]] std::vector<std::string> damages(const std::string& folder, const Manifest& manifest, bool verify = true);

/// Reads the manifest of a folder; empty if there is none, as in folders that Python wrote. Throws CheckpointError that
/// lists every file that is missing, or has another size or content. Contents are read only with `verify`.
[[nodiscard]] std::optional<Manifest> read_manifest(const std::string& folder, bool verify = true);

}  // namespace accel::checkpoint
