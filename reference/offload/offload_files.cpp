#include "reference/offload/offload_files.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "reference/core/errors.hpp"
#include "reference/core/input/json_parser.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/mapped_file.hpp"
#include "reference/files/safetensors.hpp"

namespace accel {
namespace {

namespace fs = std::filesystem;
using OffloadJson = nlohmann::ordered_json;

constexpr const char* kOffloadIndexName = "index.json";

// NumPy's dtype names, and torch's for dtypes that NumPy lacks. bfloat16 elements are written as int16, as in
// Accelerate, which does not support float8 here; its two names are this library's extension.
const std::vector<std::pair<std::string, at::ScalarType>>& offload_dtypes() {
  static const std::vector<std::pair<std::string, at::ScalarType>> kDtypes{{"float32", at::kFloat},
                                                                           {"float64", at::kDouble},
                                                                           {"float16", at::kHalf},
                                                                           {"bfloat16", at::kBFloat16},
                                                                           {"int64", at::kLong},
                                                                           {"int32", at::kInt},
                                                                           {"int16", at::kShort},
                                                                           {"int8", at::kChar},
                                                                           {"uint8", at::kByte},
                                                                           {"bool", at::kBool},
                                                                           {"complex64", at::kComplexFloat},
                                                                           {"complex128", at::kComplexDouble},
                                                                           {"uint16", at::kUInt16},
                                                                           {"uint32", at::kUInt32},
                                                                           {"uint64", at::kUInt64},
                                                                           {"float8_e4m3fn", at::kFloat8_e4m3fn},
                                                                           {"float8_e5m2", at::kFloat8_e5m2}};
  return kDtypes;
}

// The first name of a dtype is the one that is written.
std::string offload_dtype_name(at::ScalarType dtype) {
  for (const auto& [name, other] : offload_dtypes()) {
    if (other == dtype) return name;
  }
  throw ArgumentError(fmt::format("dtype {}: unsupported in an offload folder", c10::toString(dtype)));
}

std::optional<at::ScalarType> offload_dtype(const std::string& name) {
  for (const auto& [other, dtype] : offload_dtypes()) {
    if (other == name) return dtype;
  }
  return std::nullopt;
}

// ordered_json keeps the order of entries, so that adding tensors does not reorder a file that Python wrote.
OffloadJson index_in(Files& files, const std::string& folder) {
  const auto path = folder + "/" + kOffloadIndexName;
  if (!is_file(files, path)) return OffloadJson::object();
  auto index = parse_json<OffloadJson, CheckpointError>(files.read(path),
                                                        {.path = path, .expected = "an index of an offload folder"});
  check_checkpoint(index.is_object(), "{}: not an index of an offload folder; expected a JSON object", path);
  return index;
}

void write_tensor(Files& files, const std::string& folder, const std::string& name, const at::Tensor& tensor,
                  OffloadJson& index) {
  const auto dense = contiguous_on_cpu(tensor);
  // The tensor before the index: an index never names a file that is incomplete.
  write_atomically(files, folder + "/" + name + ".dat", bytes_of(dense));
  index[name] = {{"dtype", offload_dtype_name(dense.scalar_type())}, {"shape", dense.sizes().vec()}};
}

void write_index(Files& files, const std::string& folder, const OffloadJson& index) {
  write_atomically(files, folder + "/" + kOffloadIndexName, index.dump(2, ' ', /*ensure_ascii=*/true));
}

// Takes entries whose files are about to change out of the index on the disk: a process that is killed meanwhile must
// not leave an index that mixes two saves.
template <typename Names>
void forget(Files& files, const std::string& folder, const Names& names, const OffloadJson& index) {
  auto kept = index;
  for (const auto& [name, value] : names) kept.erase(name);
  if (kept.size() < index.size()) write_index(files, folder, kept);
}

bool is_safetensors(const std::string& path) { return path.ends_with(".safetensors"); }

// Checks the size now, so that a truncated file is reported when the index is read, not in the middle of a forward.
StoredWeight weight_of_raw_file(const std::string& path, at::ScalarType dtype, const std::vector<std::int64_t>& sizes) {
  const auto num_bytes = num_bytes_of(sizes, 8 * static_cast<std::int64_t>(c10::elementSize(dtype)));
  std::error_code missing;
  const auto file_size = fs::file_size(path, missing);
  check_checkpoint(!missing, "{}: file is missing; copy it, or offload the weights again", path);
  check_checkpoint(num_bytes && static_cast<std::int64_t>(file_size) == *num_bytes,
                   "{}: has {} bytes, but shape [{}] of {} needs {}; copy the file, or offload the weights again", path,
                   file_size, fmt::join(sizes, ", "), c10::toString(dtype), num_bytes.value_or(-1));
  // Opened when it is loaded, so an index of thousands of tensors does not hold as many files.
  return {.file = path, .dtype = dtype, .sizes = sizes, .load = [=] {
            const auto file = std::make_shared<const MappedFile>(path);
            check_checkpoint(
                file->size() == file_size,
                "{}: has {} bytes, but had {} when the index was read; keep other programs from writing to it", path,
                file->size(), file_size);
            return StoredTensor{.dtype = dtype, .sizes = sizes, .file = file}.load();
          }};
}

// `stored` keeps the mapping alive, so the file may be unlinked or replaced before the tensor is loaded.
StoredWeight weight_of_safetensors(const std::string& path, const std::string& name,
                                   std::optional<at::ScalarType> dtype) {
  const SafetensorsFile file(path);
  // Reads the header only; the data is read from the mapping when the weight is loaded.
  const auto stored = file.stored(name);
  return {.file = path, .dtype = dtype.value_or(stored.dtype), .sizes = stored.sizes, .load = [stored, dtype] {
            return stored.load().to(dtype.value_or(stored.dtype));
          }};
}

// An entry is either {"dtype", "shape"} for a .dat file, or {"safetensors_file", "weight_name", "dtype"}.
StoredWeight weight_of_entry(const std::string& folder, const std::string& name, const OffloadJson& entry) {
  std::optional<at::ScalarType> dtype;
  if (entry.contains("dtype")) {
    const auto spelled = entry.at("dtype").get<std::string>();
    dtype = offload_dtype(spelled);
    check_checkpoint(dtype.has_value(), "'{}' has unknown dtype '{}'; expected a dtype of torch, such as float32", name,
                     spelled);
  }
  // The index's dtype takes precedence over the file's: Accelerate casts when it loads.
  if (entry.contains("safetensors_file"))
    return weight_of_safetensors(entry.at("safetensors_file"), entry.value("weight_name", name), dtype);
  check_checkpoint(dtype && entry.contains("shape"),
                   "'{}' lacks a dtype or a shape; expected both, or safetensors_file", name);
  return weight_of_raw_file(folder + "/" + name + ".dat", *dtype, entry.at("shape").get<std::vector<std::int64_t>>());
}

}  // namespace

void offload_state_dict(Files& files, const std::string& save_dir, const NamedTensors& state_dict) {
  files.make_folder(save_dir);
  auto index = index_in(files, save_dir);
  forget(files, save_dir, state_dict, index);
  for (const auto& [name, tensor] : state_dict) write_tensor(files, save_dir, name, tensor, index);
  write_index(files, save_dir, index);
}

void save_offload_index(Files& files, const std::string& offload_folder, const OffloadIndex& weights) {
  files.make_folder(offload_folder);
  auto index = index_in(files, offload_folder);
  forget(files, offload_folder, weights, index);
  for (const auto& [name, weight] : weights) {
    if (is_safetensors(weight.file))
      // An absolute path, since the index is read from another folder, and perhaps from another working directory.
      index[name] = {{"safetensors_file", fs::absolute(weight.file).string()},
                     {"weight_name", name},
                     {"dtype", offload_dtype_name(weight.dtype)}};
    else
      write_tensor(files, offload_folder, name, weight.load(), index);
  }
  write_index(files, offload_folder, index);
}

OffloadIndex read_offload_index(const std::string& offload_folder) {
  PosixFiles files;
  OffloadIndex weights;
  std::vector<std::string> problems;
  const auto index = index_in(files, offload_folder);
  for (const auto& [name, entry] : index.items()) {
    try {
      weights.emplace(name, weight_of_entry(offload_folder, name, entry));
    } catch (const Error& error) {
      problems.emplace_back(error.what());
    } catch (const nlohmann::json::exception&) {
      problems.push_back(
          fmt::format("'{}' has a malformed entry; expected dtype and shape, or safetensors_file", name));
    }
  }
  check_checkpoint(problems.empty(), "{}/{}: {}", offload_folder, kOffloadIndexName, listed(problems, "; "));
  return weights;
}

OffloadedWeightsLoader::OffloadedWeightsLoader(OffloadedWeights weights) : weights_(std::move(weights)) {
  // merge keeps existing keys: entries that the caller passed take precedence over the folder's.
  if (!weights_.save_folder.empty()) weights_.index.merge(read_offload_index(weights_.save_folder));
}

at::Tensor OffloadedWeightsLoader::load(const std::string& name) const {
  if (const auto found = weights_.state_dict.find(name); found != weights_.state_dict.end()) return found->second;
  const auto found = weights_.index.find(name);
  check_argument(found != weights_.index.end(),
                 "offloaded weights: no tensor is named '{}'; expected a name in state_dict or in the index", name);
  return found->second.load();
}

std::size_t OffloadedWeightsLoader::size() const {
  // A name may be in memory and on disk; it counts once.
  auto size = weights_.state_dict.size();
  for (const auto& [name, weight] : weights_.index) size += weights_.state_dict.contains(name) ? 0 : 1;
  return size;
}

}  // namespace accel
