#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

/// The dtypes of safetensors files.
///
///     safetensors_format("BF16")->dtype == at::kBFloat16
///
/// Thread rule: pure functions. Source: safetensors/src/tensor.rs, Dtype.
namespace accel {

struct SafetensorsFormat {
  std::string name = {};  // as the format spells it
  std::int64_t bits;
  std::optional<at::ScalarType> dtype = {};  // none where an element is a fraction of a byte
};

/// In the order in which the format's own writer lays tensors down: the widest first.
const std::vector<SafetensorsFormat>& safetensors_formats();
/// Null if there is none.
const SafetensorsFormat* safetensors_format(std::string_view name);
const SafetensorsFormat* safetensors_format(at::ScalarType dtype);

}  // namespace accel
