// The same tensors must go into the same files as with Python, including the quirks of huggingface_hub, since users
// compare and mix both.
#include "reference/checkpoint/weights_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/core/input/json_parser.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

struct Names {
  std::string_view stem, extension;
};
Names names_of(bool safe_serialization) {
  return safe_serialization ? Names{"model", ".safetensors"} : Names{"pytorch_model", ".bin"};
}

std::string file_name(bool safe_serialization, const std::string& suffix) {
  const auto [stem, extension] = names_of(safe_serialization);
  return fmt::format("{}{}{}", stem, suffix, extension);
}

// Python's str.strip(), for sizes such as " 10 GB ".
std::string_view trimmed(std::string_view text) {
  const auto is_space = [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; };
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

bool are_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

using Shards = std::vector<std::vector<std::string>>;

// A tensor that is too large is placed before the shard that is being filled, as in huggingface_hub. The shard being
// filled continues after it.
Shards fill(const std::vector<SavedTensor>& tensors, std::int64_t max_bytes, std::int64_t& total_bytes) {
  Shards shards;
  std::vector<std::string> current;
  std::int64_t current_bytes = 0;
  for (const auto& [name, num_bytes, memory] : tensors) {
    total_bytes += num_bytes;
    if (num_bytes > max_bytes) {
      shards.push_back({name});
      continue;
    }
    if (current_bytes + num_bytes > max_bytes) {
      shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(name);
    current_bytes += num_bytes;
  }
  if (!current.empty() || shards.empty()) shards.push_back(std::move(current));
  return shards;
}

nlohmann::json parse(std::string_view bytes, const std::string& path) {
  return parse_json<nlohmann::json, CheckpointError>(
      bytes, {.path = path, .expected = "a weight_map of tensor names and file names"});
}

// Whether the text is a plain file name. A path could make the reader open files outside the folder.
bool is_file_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

WeightsPlan plan_weights_files(const std::vector<SavedTensor>& tensors, const WeightsPlanOptions& options) {
  check_argument(options.max_shard_bytes > 0, "max_shard_size: {} bytes; expected a positive number",
                 options.max_shard_bytes);
  std::vector<SavedTensor> first;                        // the first tensor of each memory
  std::map<std::size_t, std::string> first_of;           // memory to the name of its first tensor
  std::map<std::string, std::vector<std::string>> more;  // name of the first tensor to the names of the others
  for (const auto& tensor : tensors) {
    const auto found = tensor.memory ? first_of.find(*tensor.memory) : first_of.end();
    if (found != first_of.end()) {
      more[found->second].push_back(tensor.name);
      continue;
    }
    if (tensor.memory) first_of[*tensor.memory] = tensor.name;
    first.push_back(tensor);
  }

  WeightsPlan plan;
  auto shards = fill(first, options.max_shard_bytes, plan.total_bytes);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    auto names = shards[i];
    // Tensors that share memory with one of this file follow after its own tensors. huggingface_hub adds them in this
    // order too, so files are equal byte for byte.
    for (const auto& tensor : first) {  // in the order of the memories
      const bool is_here =
          more.contains(tensor.name) && std::find(shards[i].begin(), shards[i].end(), tensor.name) != shards[i].end();
      if (is_here) names.insert(names.end(), more[tensor.name].begin(), more[tensor.name].end());
    }
    const auto suffix = shards.size() == 1 ? std::string() : fmt::format("-{:05}-of-{:05}", i + 1, shards.size());
    plan.files.push_back({file_name(options.safe_serialization, suffix), std::move(names)});
  }
  if (plan.is_sharded()) plan.index_file = weights_index_name(options.safe_serialization);
  return plan;
}

// Source: huggingface_hub/serialization/_base.py, parse_size_to_int. Fractions such as "0.5GB" are allowed.
std::int64_t parse_size(std::string_view text) {
  const auto whole = trimmed(text);
  const auto unit = upper_case(std::string(whole.substr(whole.size() < 2 ? 0 : whole.size() - 2)));
  static const std::map<std::string, double> kUnits{{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"KB", 1e3}};
  check_argument(kUnits.contains(unit), "size '{}': expected a number and TB, GB, MB or KB, like 10GB", text);
  auto number = trimmed(whole.substr(0, whole.size() - 2));
  if (!number.empty() && number.front() == '+') number.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  const auto bytes = value * kUnits.at(unit);
  check_argument(error == std::errc() && end == number.data() + number.size() && bytes >= 0 && bytes < 9.2e18,
                 "size '{}': expected a number and TB, GB, MB or KB, like 10GB", text);
  return static_cast<std::int64_t>(bytes);
}

std::string weights_file_name(bool safe_serialization) { return file_name(safe_serialization, ""); }

std::string weights_index_name(bool safe_serialization) {
  return weights_file_name(safe_serialization) + ".index.json";
}

std::string spare_weights_name(const std::string& name, int spare) {
  const auto dot = name.rfind('.');
  return fmt::format("{}.new{}{}", name.substr(0, dot), spare, name.substr(dot));
}

// Used to find the remains of an earlier save. It must not match files that the user has put into the folder.
bool is_weights_file(std::string_view name, bool safe_serialization) {
  if (name == weights_file_name(safe_serialization) || name == weights_index_name(safe_serialization)) return true;
  const auto [stem, extension] = names_of(safe_serialization);
  constexpr std::size_t kSuffixBytes = sizeof("-00001-of-00002") - 1;
  if (name.size() < stem.size() + kSuffixBytes || name.substr(0, stem.size()) != stem) return false;
  const auto suffix = name.substr(stem.size(), kSuffixBytes);
  const auto end = name.substr(stem.size() + kSuffixBytes);
  constexpr std::string_view kSpare = ".new";
  const bool is_spare = end.starts_with(kSpare) && end.size() == kSpare.size() + 1 + extension.size() &&
                        are_digits(end.substr(kSpare.size(), 1)) && end.ends_with(extension);
  return (end == extension || is_spare) && suffix[0] == '-' && are_digits(suffix.substr(1, 5)) &&
         suffix.substr(6, 4) == "-of-" && are_digits(suffix.substr(10));
}

// Python's json.dumps(indent=2, sort_keys=True) plus a newline; ensure_ascii is its default.
std::string weights_index(const WeightMap& weight_map, std::int64_t total_bytes) {
  const nlohmann::json index{{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  try {
    return index.dump(2, ' ', /*ensure_ascii=*/true) + "\n";
  } catch (const nlohmann::json::exception& error) {
    throw ArgumentError(fmt::format("the name of a tensor is not UTF-8: {}", error.what()));
  }
}

WeightMap read_weights_index(std::string_view bytes, const std::string& path) {
  const auto index = parse(bytes, path);
  check_checkpoint(index.is_object(), "{}: expected a JSON object with a weight_map", path);
  // Without a weight_map the object itself is the map, as in accelerate/utils/modeling.py.
  const auto& map = index.contains("weight_map") ? index["weight_map"] : index;
  check_checkpoint(map.is_object(), "{}: weight_map: expected an object that maps tensor names to file names", path);
  WeightMap result;
  std::vector<std::string> problems;
  for (const auto& [name, file] : map.items()) {
    if (file.is_string() && is_file_name(file.get<std::string>()))
      result[name] = file.get<std::string>();
    else
      problems.push_back(
          fmt::format("'{}' is in {}", name, file.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace)));
  }
  check_checkpoint(problems.empty(), "{}: expected names of files in the same folder:\n  {}", path,
                   listed(problems, "\n  "));
  return result;
}

}  // namespace accel
