// One table for all three directions (torch name, storage class, numpy name), so that a new dtype is one line.
// Quantized dtypes are missing: their tensors need more than a storage.
#include "reference/checkpoint/torch_dtypes.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel::checkpoint {
namespace {

struct Names {
  at::ScalarType dtype;
  TorchDtype torch;
  std::string numpy;
};

// Empty names mean that the dtype has no typed storage in torch, or no counterpart in numpy.
const std::vector<Names>& all_names() {
  static const std::vector<Names> kNames{{at::kDouble, {"float64", "DoubleStorage"}, "f8"},
                                         {at::kFloat, {"float32", "FloatStorage"}, "f4"},
                                         {at::kHalf, {"float16", "HalfStorage"}, "f2"},
                                         {at::kLong, {"int64", "LongStorage"}, "i8"},
                                         {at::kInt, {"int32", "IntStorage"}, "i4"},
                                         {at::kShort, {"int16", "ShortStorage"}, "i2"},
                                         {at::kChar, {"int8", "CharStorage"}, "i1"},
                                         {at::kByte, {"uint8", "ByteStorage"}, "u1"},
                                         {at::kBool, {"bool", "BoolStorage"}, "b1"},
                                         {at::kBFloat16, {"bfloat16", "BFloat16Storage"}, ""},
                                         {at::kComplexDouble, {"complex128", "ComplexDoubleStorage"}, "c16"},
                                         {at::kComplexFloat, {"complex64", "ComplexFloatStorage"}, "c8"},
                                         {at::kComplexHalf, {"complex32", ""}, ""},
                                         {at::kUInt16, {"uint16", ""}, "u2"},
                                         {at::kUInt32, {"uint32", ""}, "u4"},
                                         {at::kUInt64, {"uint64", ""}, "u8"},
                                         {at::kFloat8_e4m3fn, {"float8_e4m3fn", ""}, ""},
                                         {at::kFloat8_e5m2, {"float8_e5m2", ""}, ""},
                                         {at::kFloat8_e4m3fnuz, {"float8_e4m3fnuz", ""}, ""},
                                         {at::kFloat8_e5m2fnuz, {"float8_e5m2fnuz", ""}, ""},
                                         {at::kFloat8_e8m0fnu, {"float8_e8m0fnu", ""}, ""}};
  return kNames;
}

// An empty name would match every dtype without a name of that kind.
template <typename Is>
std::optional<at::ScalarType> find(std::string_view name, Is&& is) {
  const auto found = std::find_if(all_names().begin(), all_names().end(), is);
  return name.empty() || found == all_names().end() ? std::nullopt : std::optional(found->dtype);
}

}  // namespace

std::optional<at::ScalarType> torch_dtype(std::string_view name) {
  return find(name, [&](const Names& names) { return names.torch.name == name; });
}

std::optional<at::ScalarType> storage_dtype(std::string_view name) {
  return find(name, [&](const Names& names) { return names.torch.storage_name == name; });
}

std::optional<at::ScalarType> numpy_dtype(std::string_view name) {
  return find(name, [&](const Names& names) { return names.numpy == name; });
}

const TorchDtype& torch_dtype_names(at::ScalarType dtype) {
  const auto found =
      std::find_if(all_names().begin(), all_names().end(), [&](const Names& names) { return names.dtype == dtype; });
  check_argument(found != all_names().end(), "cannot save a tensor of type {} in a file of torch.save; convert it",
                 toString(dtype));
  return found->torch;
}

}  // namespace accel::checkpoint
