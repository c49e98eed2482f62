// Writes safetensors files with the bytes of the reference implementation, so that files can be compared by hash
// with those of Python. nlohmann::json would sort the keys, and the format's writer does not, so the header is
// composed here.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "reference/core/errors.hpp"
#include "reference/files/safetensors.hpp"

namespace accel {
namespace {

struct Placed {
  std::string name;
  at::Tensor tensor;
  const SafetensorsFormat* format = nullptr;
};

// Source: safetensors/src/tensor.rs, prepare: by dtype, the widest first, then by name.
// Checks everything before the file is created. The pointers in `format` point into one table, whose order is the
// order of the dtypes, so comparing the pointers compares the dtypes.
std::vector<Placed> placed(const NamedTensors& tensors, const std::string& path) {
  std::vector<Placed> result;
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) {
    check_argument(name != "__metadata__" && names.insert(name).second,
                   "{}: two entries of a safetensors file would have the name '{}'; expected unique names", path, name);
    check_argument(tensor.defined() && tensor.layout() == at::kStrided && !tensor.is_meta(),
                   "{}: tensor '{}' is undefined, sparse or on the meta device; expected a dense tensor", path, name);
    const auto* format = safetensors_format(tensor.scalar_type());
    check_argument(
        format != nullptr,
        "{}: tensor '{}' has dtype {}, which safetensors files do not support; save it with safe_serialization: false",
        path, name, toString(tensor.scalar_type()));
    result.push_back({name, tensor, format});
  }
  std::sort(result.begin(), result.end(),
            [](const Placed& a, const Placed& b) { return std::tie(a.format, a.name) < std::tie(b.format, b.name); });
  return result;
}

// nlohmann::json escapes strings as serde_json does, which the byte-for-byte comparison relies on.
std::string spelled(const std::string& text, const std::string& path) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    throw ArgumentError(
        fmt::format("{}: the name '{}' is not valid UTF-8, which safetensors files require", path, text));
  }
}

std::string header_of(const std::vector<Placed>& tensors, const std::map<std::string, std::string>& metadata,
                      const std::string& path) {
  std::vector<std::string> entries;
  if (!metadata.empty()) {
    std::vector<std::string> pairs;
    for (const auto& [key, value] : metadata) pairs.push_back(spelled(key, path) + ":" + spelled(value, path));
    entries.push_back(fmt::format(R"("__metadata__":{{{}}})", fmt::join(pairs, ",")));
  }
  std::int64_t place = 0;
  for (const auto& [name, tensor, format] : tensors) {
    const auto end = place + static_cast<std::int64_t>(tensor.nbytes());
    entries.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", spelled(name, path),
                                  format->name, fmt::join(tensor.sizes(), ","), place, end));
    place = end;
  }
  auto header = fmt::format("{{{}}}", fmt::join(entries, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');  // aligns the data to 8 bytes
  return header;
}

}  // namespace

void write_safetensors(Files& files, const std::string& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  // The header stores offsets, so all sizes are known before the first tensor is copied to the CPU.
  const auto in_order = placed(tensors, path);
  const auto header = header_of(in_order, metadata, path);
  const std::uint64_t length = header.size();
  std::string begin(sizeof length, '\0');
  std::memcpy(begin.data(), &length, sizeof length);
  write_atomically(files, path, [&](WritableFile& file) {
    file.append(begin + header);
    for (const auto& [name, tensor, format] : in_order) {
      const auto dense = contiguous_on_cpu(tensor);
      if (dense.nbytes() > 0) file.append(bytes_of(dense));
    }
  });
}

}  // namespace accel
