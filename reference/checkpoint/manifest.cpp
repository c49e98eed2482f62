// The manifest makes damage visible before anything is loaded: a checkpoint that loads partly wrong weights is worse
// than one that does not load.
#include "reference/checkpoint/manifest.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/core/input/json_parser.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/mapped_file.hpp"

namespace accel::checkpoint {
namespace {

using Json = nlohmann::ordered_json;

// Increment if the meaning of a key changes. Readers reject other versions.
constexpr int kVersion = 1;
constexpr const char* kChecksum = "xxh3_64";

// Of the entries of a manifest without its own checksum. Independent of spaces, since it covers the parsed values.
std::string checksum_of(const Json& json) {
  Checksum checksum;
  checksum.update(json.dump());
  return checksum.hex();
}

// The cheap checks (existence, size) come first and always run.
std::string problem_of(const std::string& folder, const ManifestEntry& entry, bool verify) {
  std::error_code error;
  const auto path = folder + "/" + entry.name;
  const auto bytes = std::filesystem::file_size(path, error);
  if (error) return fmt::format("{}: missing", entry.name);
  if (static_cast<std::int64_t>(bytes) != entry.bytes)
    return fmt::format("{}: has {} bytes, expected {}", entry.name, bytes, entry.bytes);
  if (!verify) return "";
  Checksum checksum;
  const MappedFile file(path);
  // Files may be larger than memory: read ahead, and let the kernel drop pages that have been read.
  file.advise(MappedFile::Access::kSequential);
  file.read_pieces([&](std::size_t /*begin*/, std::string_view bytes) { checksum.update(bytes); });
  return checksum.hex() == entry.checksum ? ""
                                          : fmt::format("{}: the content is damaged (xxh3_64 {}, expected {})",
                                                        entry.name, checksum.hex(), entry.checksum);
}

}  // namespace

Checksum::Checksum()
    : state_(XXH3_createState(), [](void* state) { XXH3_freeState(static_cast<XXH3_state_t*>(state)); }) {
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_.get()));
}

void Checksum::update(std::string_view bytes) {
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_.get()), bytes.data(), bytes.size());
}

std::string Checksum::hex() const {
  return fmt::format("{:016x}", XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_.get())));
}

bool Manifest::lists(const std::string& name) const {
  return std::any_of(files.begin(), files.end(), [&](const auto& entry) { return entry.name == name; });
}

std::string to_json(const Manifest& manifest) {
  Json files = Json::array();
  for (const auto& entry : manifest.files)
    files.push_back({{"name", entry.name}, {"bytes", entry.bytes}, {"xxh3_64", entry.checksum}});
  Json json{{"version", kVersion}, {"world_size", manifest.world_size}};
  if (manifest.num_parts > 0) json["parts"] = manifest.num_parts;
  json["files"] = std::move(files);
  json[kChecksum] = checksum_of(json);
  return json.dump(2) + "\n";
}

Manifest manifest_of(const std::string& json, const std::string& path) {
  try {
    auto parsed = parse_json<Json, CheckpointError>(json, {.path = path, .expected = "the manifest of a checkpoint"});
    const int version = parsed.at("version").get<int>();
    if (version != kVersion)
      throw CheckpointError(fmt::format("{}: version {} is unsupported; expected version {}", path, version, kVersion));
    if (parsed.contains(kChecksum)) {  // earlier versions wrote none
      const auto expected = parsed.at(kChecksum).get<std::string>();
      parsed.erase(kChecksum);
      if (const auto found = checksum_of(parsed); found != expected)
        throw CheckpointError(
            fmt::format("{}: the content is damaged (xxh3_64 {}, expected {}); copy it again, or load "
                        "another checkpoint",
                        path, found, expected));
    }
    Manifest manifest{
        .world_size = parsed.at("world_size").get<int>(), .files = {}, .num_parts = parsed.value("parts", 0)};
    for (const auto& file : parsed.at("files")) {
      manifest.files.push_back({.name = file.at("name").get<std::string>(),
                                .bytes = file.at("bytes").get<std::int64_t>(),
                                .checksum = file.at("xxh3_64").get<std::string>()});
      const std::filesystem::path name(manifest.files.back().name);
      // A manifest may come from anywhere; names must not make a reader open files outside the folder.
      const bool leaves =
          name.is_absolute() || std::any_of(name.begin(), name.end(), [](const auto& part) { return part == ".."; });
      if (leaves)
        throw CheckpointError(
            fmt::format("{}: '{}' is a path outside the folder; expected a path inside it; save the checkpoint again",
                        path, name.string()));
    }
    if (manifest.world_size < 1)
      throw CheckpointError(fmt::format("{}: world_size: expected 1 or more, got {}", path, manifest.world_size));
    return manifest;
  } catch (const Json::exception& error) {
    throw CheckpointError(
        fmt::format("{}: not a manifest of a checkpoint: {}; copy or save the checkpoint again", path, error.what()));
  }
}

std::vector<std::string> damages(const std::string& folder, const Manifest& manifest, bool verify) {
  std::vector<std::string> problems;
  for (const auto& entry : manifest.files) {
    if (auto problem = problem_of(folder, entry, verify); !problem.empty()) problems.push_back(std::move(problem));
  }
  return problems;
}

std::optional<Manifest> read_manifest(const std::string& folder, bool verify) {
  const auto path = folder + "/" + kManifestName;
  if (!std::filesystem::exists(path)) return std::nullopt;
  auto manifest = manifest_of(MappedFile(path).read(), path);
  const auto problems = damages(folder, manifest, verify);
  if (!problems.empty())
    throw CheckpointError(fmt::format("{}: this checkpoint is damaged: {}; copy it again, or load another checkpoint",
                                      folder, listed(problems, "; ")));
  return manifest;
}

}  // namespace accel::checkpoint
