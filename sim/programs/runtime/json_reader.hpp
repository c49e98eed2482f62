#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace accel::programs {

/// Reads one JSON object strictly: every problem (unknown or missing key, wrong type) is noted, none is thrown.
///
///     JsonReader reader(json);
///     reader.read("ranks", request.ranks, JsonReader::kRequired);
///     auto problems = reader.problems();
///
/// Thread rule: a value; `json` outlives it.
class JsonReader {
 public:
  enum Presence { kOptional, kRequired };

  explicit JsonReader(const nlohmann::ordered_json& json) : json_(json) {}

  /// Leaves `value` as it is where the key is absent or wrong. `T`: bool, int, std::int64_t, std::uint64_t,
  /// std::string, or a std::optional of one, which null leaves empty.
  template <typename T>
  void read(const std::string& key, T& value, Presence presence = kOptional) {
    known_.insert(key);
    const auto found = json_.find(key);
    if (found != json_.end()) {
      convert(key, *found, value);
    } else if (presence == kRequired) {
      problems_.push_back(key + ": missing");
    }
  }

  /// All problems so far, and the keys that nobody asked for.
  [[nodiscard]] std::vector<std::string> problems() const;

 private:
  using Json = nlohmann::ordered_json;
  void convert(const std::string& key, const Json& json, bool& value);
  void convert(const std::string& key, const Json& json, int& value);
  void convert(const std::string& key, const Json& json, std::int64_t& value);
  void convert(const std::string& key, const Json& json, std::uint64_t& value);
  void convert(const std::string& key, const Json& json, std::string& value);
  template <typename T>
  void convert(const std::string& key, const Json& json, std::optional<T>& value) {
    if (json.is_null()) return;
    T inner{};
    convert(key, json, inner);
    value = std::move(inner);
  }
  void expected(const std::string& key, const std::string& what, const Json& json);

  const Json& json_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace accel::programs
