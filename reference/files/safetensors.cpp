// Reads and validates safetensors files. Files come from elsewhere (the Hub, other programs), so every number of
// the header is checked before it is used as an offset or a size; after the constructor all entries are in range.
#include "reference/files/safetensors.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>
#include <unordered_set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {
namespace {

template <typename Is>
const SafetensorsFormat* find(Is&& is) {
  const auto& formats = safetensors_formats();
  const auto found = std::find_if(formats.begin(), formats.end(), is);
  return found == formats.end() ? nullptr : &*found;
}

constexpr std::uint64_t kHeaderBytesMax = 100'000'000;  // MAX_HEADER_SIZE of the reference implementation

using Json = nlohmann::json;

// The header, with checked types but unchecked offsets.
struct Header {
  struct Tensor {
    std::string name = {}, dtype = {};  // as spelled in the file
    std::vector<std::int64_t> sizes = {};
    std::int64_t begin = 0, end = 0;  // offsets in the data, which follow the header
  };
  std::vector<Tensor> tensors = {};
  std::map<std::string, std::string> metadata = {};
};

// Reads the header event by event. A tree of JSON values would need many times the memory of the header, and the
// callback of nlohmann::json that could reject values early visits all tensors again after each one.
class HeaderReader : public Json::json_sax_t {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}
  Header take() { return std::move(header_); }

  bool null() override { return (depth_ == 1 && name_ == "__metadata__") || other("null"); }
  bool boolean(bool) override { return other("boolean"); }
  bool number_integer(Json::number_integer_t) override { return other("number"); }
  bool number_float(Json::number_float_t, const std::string&) override { return other("number"); }
  bool binary(Json::binary_t&) override { return other("binary"); }

  // Sizes and offsets are unsigned in the file and signed in LibTorch; a larger value would become negative.
  bool number_unsigned(Json::number_unsigned_t number) override {
    if (is_ignored()) return true;
    if (depth_ != 3 || number > static_cast<std::uint64_t>(INT64_MAX)) return other("number");
    auto& numbers = key_ == "shape" ? *sizes_ : *offsets_;
    numbers.push_back(static_cast<std::int64_t>(number));
    check_config(numbers.size() <= kDimensionsMax || key_ != "shape",
                 "{}: tensor '{}': the shape has more than {} dimensions; expected at most {}", path_, name_,
                 kDimensionsMax, kDimensionsMax);
    return key_ == "shape" || numbers.size() <= 2 || other("array");
  }

  bool string(std::string& text) override {
    if (is_ignored()) return true;
    if (depth_ != 2) return other("string");
    if (is_metadata_) {
      header_.metadata[key_] = std::move(text);
      return true;
    }
    if (key_ != "dtype") return other("string");
    dtype_ = std::move(text);
    return true;
  }

  bool start_object(std::size_t) override {
    if (is_ignored()) return open_ignored();
    if (depth_ > 1) return other("object");
    if (depth_++ == 0) return true;
    is_metadata_ = name_ == "__metadata__";
    dtype_.reset();
    sizes_.reset();
    offsets_.reset();
    keys_.clear();
    return true;
  }

  bool end_object() override {
    if (ignored_depth_ > 0) return close_ignored();
    if (depth_-- == 1 || is_metadata_) return true;
    if (!dtype_ || !sizes_ || !offsets_ || offsets_->size() != 2) throw_wrong_entry();
    header_.tensors.push_back({.name = std::move(name_),
                               .dtype = std::move(*dtype_),
                               .sizes = std::move(*sizes_),
                               .begin = offsets_->front(),
                               .end = offsets_->back()});
    return true;
  }

  bool start_array(std::size_t) override {
    if (is_ignored()) return open_ignored();
    if (depth_ != 2 || is_metadata_ || (key_ != "shape" && key_ != "data_offsets")) return other("array");
    ++depth_;
    (key_ == "shape" ? sizes_ : offsets_).emplace();
    return true;
  }

  bool end_array() override {
    if (ignored_depth_ > 0) return close_ignored();
    --depth_;
    return true;
  }

  // The format forbids repeated keys, which nlohmann::json accepts silently (it keeps the last value).
  bool key(std::string& text) override {
    if (ignored_depth_ > 0) return true;
    if (depth_ == 2 && !is_metadata_ && !is_known(text)) {
      key_.clear();
      return true;
    }
    auto& keys = depth_ == 1 ? names_ : keys_;
    check_config(keys.insert(text).second, "{}: the header contains the key '{}' twice; expected unique keys", path_,
                 text);
    (depth_ == 1 ? name_ : key_) = std::move(text);
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    throw ConfigError(
        fmt::format("{}: the header, which starts at byte 8, is not valid JSON: {}; copy or download the file again",
                    path_, error.what()));
  }

 private:
  static bool is_known(std::string_view key) { return key == "dtype" || key == "shape" || key == "data_offsets"; }

  // As in the reference implementation, other keys of an entry are ignored, with all that is in their values.
  [[nodiscard]] bool is_ignored() const { return ignored_depth_ > 0 || (depth_ == 2 && !is_metadata_ && key_.empty()); }
  bool open_ignored() {
    constexpr int kDepthMax = 126;  // serde_json reads 128 levels in total
    check_config(++ignored_depth_ <= kDepthMax,
                 "{}: tensor '{}': values nested more than {} deep; expected an entry "
                 "with dtype, shape and two data_offsets",
                 path_, name_, kDepthMax);
    return true;
  }
  bool close_ignored() {
    --ignored_depth_;
    return true;
  }

  // A value that the format lacks at this place.
  bool other(std::string_view type) {
    if (is_ignored()) return true;
    check_config(
        depth_ > 0,
        "{}: the header, which starts at byte 8, is not a JSON object but of type {}; expected an object of tensors",
        path_, type);
    check_config(name_ != "__metadata__", "{}: __metadata__: expected an object whose values are strings", path_);
    throw_wrong_entry();
  }

  [[noreturn]] void throw_wrong_entry() const {
    throw ConfigError(
        fmt::format("{}: tensor '{}': expected an entry with dtype, shape and two data_offsets", path_, name_));
  }

  const std::string& path_;
  Header header_;
  int depth_ = 0;           // 1: among the tensors, 2: in an entry, 3: in a list of an entry
  int ignored_depth_ = 0;   // of objects and arrays in an ignored value
  std::string name_, key_;  // of the tensor, and in its entry; an empty key of a tensor's entry is ignored
  bool is_metadata_ = false;
  std::optional<std::string> dtype_;
  std::optional<std::vector<std::int64_t>> sizes_, offsets_;
  std::unordered_set<std::string> names_, keys_;
};

// The JSON library takes a zero byte for the end of the text, and skips a byte order mark.
Header read_json(std::string_view text, const std::string& path) {
  const auto zero = text.find('\0');
  check_config(zero == std::string_view::npos, "{}: byte {} of the file is zero; expected JSON", path, 8 + zero);
  check_config(!text.starts_with("\xef\xbb\xbf"), "{}: the header begins with a byte order mark; expected JSON", path);
  HeaderReader reader(path);
  Json::sax_parse(text, &reader);
  return reader.take();
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
  std::uint64_t header_bytes = 0;
  check_config(
      file_->size() >= 8,
      "{}: not a safetensors file: it has {} bytes; expected at least the 8 bytes that store the header length", path(),
      file_->size());
  file_->read(0, sizeof header_bytes, reinterpret_cast<char*>(&header_bytes));
  check_config(header_bytes <= kHeaderBytesMax,
               "{}: not a safetensors file: the header length is {} bytes; expected at most {}", path(), header_bytes,
               kHeaderBytesMax);
  check_config(
      header_bytes <= file_->size() - 8,
      "{}: the file is truncated: the header length is {} bytes, but the file has {} bytes; copy or download it again",
      path(), header_bytes, file_->size());
  data_begin_ = 8 + header_bytes;
  auto header = read_json(file_->read(8, header_bytes), path());
  metadata_ = std::move(header.metadata);
  // Ties occur for empty tensors; the name makes the order of `names()` independent of the header's.
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  for (auto& tensor : header.tensors) {
    names_.push_back(tensor.name);
    entries_[tensor.name] = {std::move(tensor.dtype), std::move(tensor.sizes), tensor.begin, tensor.end};
  }
}

// Source: safetensors/src/tensor.rs, Metadata::validate. Tensors must cover the data without gaps or overlaps,
// hence the comparison with the end of the previous tensor.
void SafetensorsFile::check_layout() {
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
  const auto found = static_cast<std::int64_t>(file_->size() - data_begin_);
  check_config(place == found,
               "{}: the file has {} bytes of data, but its tensors need {}: the file is {}; copy or download it again",
               path(), found, place, place > found ? "truncated" : "too long");
}

StoredTensor SafetensorsFile::stored(const std::string& name) const {
  const auto found = entries_.find(name);
  check_config(found != entries_.end(), "{}: the file has no tensor '{}'; its tensors are {}", path(), name,
               listed(names_, ", "));
  const auto& entry = found->second;
  const auto dtype = safetensors_format(entry.dtype)->dtype;
  check_config(dtype.has_value(),
               "{}: tensor '{}' has dtype {}, whose elements are smaller than a byte; LibTorch has no such dtype; "
               "store it with 8 or more bits per element",
               path(), name, entry.dtype);
  return {.dtype = *dtype,
          .sizes = entry.sizes,
          .file = file_,
          .offset = data_begin_ + static_cast<std::size_t>(entry.begin)};
}

}  // namespace accel
