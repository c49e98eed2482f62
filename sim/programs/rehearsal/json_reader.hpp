#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "reference/config/field_reader.hpp"

namespace accel::programs {

/// Reads one JSON object strictly. A null leaves an optional field empty and is an error for any other field.
///
///     JsonReader reader(json);
///     reader.read(request);
///     auto problems = reader.problems();
///
/// Thread rule: a value; `json` must outlive it.
class JsonReader : public FieldReader {
 public:
  explicit JsonReader(const nlohmann::ordered_json& json) : json_(json) {}

  /// Returns all problems so far, including keys that no field has read.
  [[nodiscard]] std::vector<std::string> problems();

  [[nodiscard]] bool has(const std::string& key) const override;
  void problem(const std::string& key, const std::string& text) override { problems_.push_back(key + ": " + text); }
  void missing(const std::string& key) override { problem(key, "missing"); }
  void finish_keys() override;

 protected:
  bool convert(const std::string& key, FieldTarget target) const override;
  [[nodiscard]] std::string given(const std::string& key) const override;
  [[nodiscard]] bool is_null(const std::string& key) const override;
  [[nodiscard]] std::string type_name(const std::string& key, FieldTarget target) const override;

 private:
  const nlohmann::ordered_json& json_;
  std::vector<std::string> problems_;
};

}  // namespace accel::programs
