#include "reference/checkpoint/weights_index.hpp"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

constexpr int kJsonDepthMax = 32;

// Without a depth of its own, the library's parser would use memory, and its values the stack, as deep as the file
// says.
nlohmann::json parse(std::string_view bytes, const std::string& path) {
  const auto watch = [&](int depth, nlohmann::json::parse_event_t, nlohmann::json&) {
    check_checkpoint(depth < kJsonDepthMax, "{}: objects within each other, more than {} deep", path, kJsonDepthMax);
    return true;
  };
  try {
    return nlohmann::json::parse(bytes, watch);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{}: no JSON: {}", path, error.what()));
  }
}

// A name, and no way out of the folder.
bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

std::string weights_index(const WeightMap& weight_map, std::int64_t total_bytes) {
  const nlohmann::json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  try {
    return index.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
  } catch (const nlohmann::json::exception& error) {
    throw ArgumentError(fmt::format("a tensor's name is no UTF-8: {}", error.what()));
  }
}

WeightMap read_weights_index(std::string_view bytes, const std::string& path) {
  const auto index = parse(bytes, path);
  check_checkpoint(index.is_object(), "{}: expected a JSON object with a weight_map", path);
  const auto& map = index.contains("weight_map") ? index["weight_map"] : index;
  check_checkpoint(map.is_object(), "{}: weight_map: expected an object of names and files", path);
  WeightMap result;
  std::vector<std::string> problems;
  for (const auto& [name, file] : map.items()) {
    if (file.is_string() && is_file_name(file.get<std::string>()))
      result[name] = file.get<std::string>();
    else
      problems.push_back(
          fmt::format("'{}' lies in {}", name, file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
  }
  check_checkpoint(problems.empty(), "{}: expected names of files beside it:\n  {}", path, fmt::join(problems, "\n  "));
  return result;
}

}  // namespace accel
