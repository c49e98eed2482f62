// Reads and validates safetensors files. Files come from elsewhere (the Hub, other programs), so every number of
// the header is checked before it is used as an offset or a size; after the constructor all entries are in range.
#include "reference/core/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

template <typename Is>
const SafetensorsFormat* find(Is&& is) {
  const auto& formats = safetensors_formats();
  const auto found = std::find_if(formats.begin(), formats.end(), is);
  return found == formats.end() ? nullptr : &*found;
}

using Json = nlohmann::json;
constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // MAX_HEADER_SIZE of the reference implementation

// The format forbids duplicate keys, which nlohmann::json accepts silently (it keeps the last value). The callback
// tracks the keys of every open object, so that a duplicate in a nested entry is found too.
Json parse_header(std::string_view text, const std::string& path) {
  std::vector<std::set<std::string>> keys;
  std::string repeated;
  const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second)
      repeated = parsed.get<std::string>();
    return true;
  };
  Json header;
  try {
    header = Json::parse(text, watch);
  } catch (const Json::exception& error) {
    throw ConfigError(
        fmt::format("{}: the header, which starts at byte 8, is not valid JSON: {}; copy or download the file again",
                    path, error.what()));
  }
  check_config(repeated.empty(), "{}: the header contains the key '{}' twice; expected unique keys", path, repeated);
  check_config(
      header.is_object(),
      "{}: the header, which starts at byte 8, is not a JSON object but of type {}; expected an object of tensors",
      path, header.type_name());
  return header;
}

// Sizes and offsets are unsigned in the file and signed in LibTorch; a larger value would become negative.
bool are_sizes(const Json& json) {
  return json.is_array() && std::all_of(json.begin(), json.end(), [](const Json& item) {
           return item.is_number_unsigned() && item.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX);
         });
}

bool is_entry(const Json& json) {
  const bool has_keys = json.is_object() && json.size() == 3 && json.contains("dtype") && json.contains("shape") &&
                        json.contains("data_offsets");
  return has_keys && json["dtype"].is_string() && are_sizes(json["shape"]) && are_sizes(json["data_offsets"]) &&
         json["data_offsets"].size() == 2;
}

std::string known_dtypes() {
  std::vector<std::string_view> names;
  for (const auto& format : safetensors_formats()) names.push_back(format.name);
  return fmt::format("one of {}", fmt::join(names, ", "));
}

}  // namespace

// A read-only table, so sharing it between ranks is safe. The order is significant: safetensors_write.cpp sorts
// tensors by it.
const std::vector<SafetensorsFormat>& safetensors_formats() {
  static const std::vector<SafetensorsFormat> kFormats{{"U64", 64, at::kUInt64},
                                                       {"I64", 64, at::kLong},
                                                       {"F64", 64, at::kDouble},
                                                       {"C64", 64, at::kComplexFloat},
                                                       {"F32", 32, at::kFloat},
                                                       {"U32", 32, at::kUInt32},
                                                       {"I32", 32, at::kInt},
                                                       {"BF16", 16, at::kBFloat16},
                                                       {"F16", 16, at::kHalf},
                                                       {"U16", 16, at::kUInt16},
                                                       {"I16", 16, at::kShort},
                                                       {"F8_E5M2FNUZ", 8, at::kFloat8_e5m2fnuz},
                                                       {"F8_E4M3FNUZ", 8, at::kFloat8_e4m3fnuz},
                                                       {"F8_E8M0", 8, at::kFloat8_e8m0fnu},
                                                       {"F8_E4M3", 8, at::kFloat8_e4m3fn},
                                                       {"F8_E5M2", 8, at::kFloat8_e5m2},
                                                       {"I8", 8, at::kChar},
                                                       {"U8", 8, at::kByte},
                                                       {"F6_E3M2", 6, std::nullopt},
                                                       {"F6_E2M3", 6, std::nullopt},
                                                       {"F4", 4, std::nullopt},
                                                       {"BOOL", 8, at::kBool}};
  return kFormats;
}

const SafetensorsFormat* safetensors_format(std::string_view name) {
  return find([&](const auto& format) { return format.name == name; });
}

const SafetensorsFormat* safetensors_format(at::ScalarType dtype) {
  return find([&](const auto& format) { return format.dtype == dtype; });
}

SafetensorsFile::SafetensorsFile(const std::string& path) : file_(std::make_shared<const MappedFile>(path)) {
  read_header();
  check_layout();
}

void SafetensorsFile::read_header() {
  const auto bytes = file_->bytes();
  std::uint64_t header_bytes = 0;
  check_config(
      bytes.size() >= 8,
      "{}: not a safetensors file: it has {} bytes; expected at least the 8 bytes that store the header length", path(),
      bytes.size());
  std::memcpy(&header_bytes, bytes.data(), sizeof header_bytes);
  check_config(header_bytes <= kHeaderBytesMax,
               "{}: not a safetensors file: the header length is {} bytes; expected at most {}", path(), header_bytes,
               kHeaderBytesMax);
  check_config(
      header_bytes <= bytes.size() - 8,
      "{}: the file is truncated: the header length is {} bytes, but the file has {} bytes; copy or download it again",
      path(), header_bytes, bytes.size());
  data_ = bytes.substr(8 + header_bytes);
  const auto header = parse_header(bytes.substr(8, header_bytes), path());
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_config(value.is_object() &&
                       std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_string(); }),
                   "{}: __metadata__: expected an object whose values are strings", path());
      metadata_ = value.get<std::map<std::string, std::string>>();
      continue;
    }
    check_config(is_entry(value), "{}: tensor '{}': expected an entry with dtype, shape and two data_offsets", path(),
                 name);
    entries_[name] = {value["dtype"], value["shape"].get<std::vector<std::int64_t>>(), value["data_offsets"][0],
                      value["data_offsets"][1]};
    names_.push_back(name);
  }
}

// Source: safetensors/src/tensor.rs, Metadata::validate. Tensors must cover the data without gaps or overlaps,
// hence the sort by offset and the comparison with the end of the previous tensor. Ties occur for empty tensors;
// the name makes the order of `names()` independent of the JSON library.
void SafetensorsFile::check_layout() {
  std::sort(names_.begin(), names_.end(), [&](const auto& a, const auto& b) {
    const auto &first = entries_.at(a), &second = entries_.at(b);
    return std::tie(first.begin, first.end, a) < std::tie(second.begin, second.end, b);
  });
  std::int64_t place = 0;
  for (const auto& name : names_) {
    const auto& entry = entries_.at(name);
    const auto* format = safetensors_format(entry.dtype);
    check_config(format != nullptr, "{}: tensor '{}': unknown dtype {}; expected {}", path(), name, entry.dtype,
                 format == nullptr ? known_dtypes() : "");
    check_config(entry.begin == place && entry.end >= entry.begin,
                 "{}: tensor '{}': data_offsets {} to {}; expected to start at {}, the end of the previous tensor",
                 path(), name, entry.begin, entry.end, place);
    const auto needed = num_bytes_of(entry.sizes, format->bits);
    check_config(needed == entry.end - entry.begin,
                 "{}: tensor '{}': {} bytes of data do not match dtype {} and shape [{}]; expected {}", path(), name,
                 entry.end - entry.begin, entry.dtype, fmt::join(entry.sizes, ", "),
                 needed ? fmt::format("{} bytes", *needed) : "a shape with a whole number of bytes");
    place = entry.end;
  }
  const auto found = static_cast<std::int64_t>(data_.size());
  check_config(place == found,
               "{}: the file has {} bytes of data, but its tensors need {}: the file is {}; copy or download it again",
               path(), found, place, place > found ? "truncated" : "too long");
}

StoredTensor SafetensorsFile::stored(const std::string& name) const {
  const auto found = entries_.find(name);
  check_config(found != entries_.end(), "{}: the file has no tensor '{}'; its tensors are {}", path(), name,
               fmt::join(names_, ", "));
  const auto& entry = found->second;
  const auto dtype = safetensors_format(entry.dtype)->dtype;
  check_config(dtype.has_value(),
               "{}: tensor '{}' has dtype {}, whose elements are smaller than a byte; LibTorch has no such dtype; "
               "store it with 8 or more bits per element",
               path(), name, entry.dtype);
  const auto bytes =
      data_.substr(static_cast<std::size_t>(entry.begin), static_cast<std::size_t>(entry.end - entry.begin));
  return {.owner = file_, .bytes = bytes, .dtype = *dtype, .sizes = entry.sizes, .file = file_.get()};
}

}  // namespace accel
