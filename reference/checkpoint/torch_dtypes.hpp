#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <string_view>

/// The names of dtypes in files of torch.save and numpy.
///
///     torch_dtype("float32") == at::kFloat
///     storage_dtype("FloatStorage") == at::kFloat
///     numpy_dtype("f4") == at::kFloat
///
/// Empty if no dtype has the name. Thread rule: pure functions.
/// Source: torch/storage.py, _dtype_to_storage_type_map and _new_dtypes.
namespace accel::checkpoint {

std::optional<at::ScalarType> torch_dtype(std::string_view name);
std::optional<at::ScalarType> storage_dtype(std::string_view name);
std::optional<at::ScalarType> numpy_dtype(std::string_view name);

struct TorchDtype {
  std::string name = {};          ///< "float32"
  std::string storage_name = {};  ///< "FloatStorage"; empty for newer dtypes, which have no typed storage
};
/// Throws ArgumentError for a dtype that torch.save cannot write.
const TorchDtype& torch_dtype_names(at::ScalarType dtype);

}  // namespace accel::checkpoint
