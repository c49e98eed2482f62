#pragma once

#include <functional>
#include <map>
#include <string>

#include "reference/files/files.hpp"
#include "tests/support/property.hpp"

/// A checkpoint of several files. Each is written under a unique name, and `latest`, which is written last, names
/// the set that belongs together.
namespace accel::testing {

using Checkpoint = std::map<std::string, std::string>;  // file to content
using Write = std::function<void(Files&, const std::string& path, const std::string& bytes)>;

inline const Write kAtomically = [](Files& files, const std::string& path, const std::string& bytes) {
  write_atomically(files, path, bytes);
};

inline void save(Files& files, const Checkpoint& checkpoint, const std::string& name, const Write& write) {
  for (const auto& [file, bytes] : checkpoint) write(files, name + "-" + file, bytes);
  write(files, "latest", name);
}

inline bool is_temporary(const std::string& path) { return path.size() >= 4 && path.substr(path.size() - 4) == ".tmp"; }

/// Returns the checkpoint that `latest` on a disk with these files refers to, or an empty one.
inline Checkpoint saved_in(const std::map<std::string, std::string>& disk) {
  if (!disk.contains("latest")) return {};
  Checkpoint checkpoint;
  const auto prefix = disk.at("latest") + "-";
  for (const auto& [path, bytes] : disk) {
    if (path.substr(0, prefix.size()) == prefix && !is_temporary(path)) checkpoint[path.substr(prefix.size())] = bytes;
  }
  return checkpoint;
}

inline Checkpoint any_checkpoint() {
  Checkpoint checkpoint;
  for (int i = 0, count = pick(1, 4); i < count; ++i) {
    checkpoint["file" + std::to_string(i)] = *rc::gen::nonEmpty(rc::gen::arbitrary<std::string>());
  }
  return checkpoint;
}

}  // namespace accel::testing
