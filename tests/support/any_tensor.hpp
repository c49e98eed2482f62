#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/property.hpp"

/// Generates tensors of arbitrary dtypes, shapes, strides and bytes.
namespace accel::testing {

inline const std::vector<at::ScalarType> kSafetensorsDtypes{at::kBool,
                                                            at::kByte,
                                                            at::kChar,
                                                            at::kShort,
                                                            at::kInt,
                                                            at::kLong,
                                                            at::kUInt16,
                                                            at::kUInt32,
                                                            at::kUInt64,
                                                            at::kHalf,
                                                            at::kBFloat16,
                                                            at::kFloat,
                                                            at::kDouble,
                                                            at::kComplexFloat,
                                                            at::kFloat8_e4m3fn,
                                                            at::kFloat8_e5m2,
                                                            at::kFloat8_e4m3fnuz,
                                                            at::kFloat8_e5m2fnuz,
                                                            at::kFloat8_e8m0fnu};

inline std::vector<at::ScalarType> torch_file_dtypes() {
  auto dtypes = kSafetensorsDtypes;
  dtypes.insert(dtypes.end(), {at::kComplexDouble, at::kComplexHalf});
  return dtypes;
}

/// Returns a tensor that may be empty, without dimensions, transposed, or a part of its storage.
inline at::Tensor any_tensor(const std::vector<at::ScalarType>& dtypes) {
  std::vector<std::int64_t> sizes(pick<std::size_t>(0, 4));
  for (auto& size : sizes) size = pick(0, 5);
  auto tensor = at::empty(sizes, at::TensorOptions(*rc::gen::elementOf(dtypes)));
  auto* bytes = static_cast<unsigned char*>(tensor.data_ptr());
  const int values = tensor.scalar_type() == at::kBool ? 2 : 256;
  for (std::size_t i = 0; i < tensor.nbytes(); ++i) bytes[i] = static_cast<unsigned char>(pick(0, values));
  if (tensor.dim() >= 2 && pick(0, 3) == 0) tensor = tensor.transpose(0, 1);
  if (tensor.dim() >= 1 && tensor.size(0) > 1 && pick(0, 3) == 0) tensor = tensor.narrow(0, 1, tensor.size(0) - 1);
  return tensor;
}

/// Returns the bytes of the elements in row-major order.
inline std::string bytes_in_order(const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

inline bool is_same_tensor(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && bytes_in_order(a) == bytes_in_order(b);
}

}  // namespace accel::testing
