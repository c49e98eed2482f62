#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

/// Builds safetensors files by hand, so that the reader is not tested with its own writer.
namespace accel::testing {

inline std::string safetensors_bytes(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(length.data(), &size, 8);
  return length + header + data;
}

struct NamedTensor {
  std::string name, dtype;  // as the format spells them
  at::Tensor tensor;
};

inline std::string raw_bytes(const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

inline std::string safetensors_of(const std::vector<NamedTensor>& tensors) {
  std::string header, data;
  for (const auto& [name, dtype, tensor] : tensors) {
    const auto bytes = raw_bytes(tensor);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "" : ",",
                          name, dtype, fmt::join(tensor.sizes(), ","), data.size(), data.size() + bytes.size());
    data += bytes;
  }
  return safetensors_bytes("{" + header + "}", data);
}

}  // namespace accel::testing
