#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/modules/model_description.hpp"

/// Sizes of the modules of a model.
///
///     const auto sizes = accel::compute_module_sizes(model, {.dtype = at::kHalf});
///     sizes.of("") == 2 * number_of_elements
///
/// Thread rule: pure functions. Source: accelerate/utils/modeling.py.
namespace accel {

/// Bytes by module or tensor name, in the order of the model's parameters, then buffers.
class ModuleSizes {
 public:
  void add(const std::string& name, std::int64_t bytes);
  /// 0 for an unknown name, a module without tensors, or a shared tensor's further names.
  [[nodiscard]] std::int64_t of(const std::string& name) const;
  [[nodiscard]] const std::vector<std::pair<std::string, std::int64_t>>& entries() const& { return entries_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> entries() && { return std::move(entries_); }

 private:
  std::vector<std::pair<std::string, std::int64_t>> entries_;
  std::map<std::string, std::size_t> places_;
};

struct ModuleSizeOptions {
  std::optional<at::ScalarType> dtype = {};  ///< dtype in which floating-point tensors are loaded, if it is smaller
  std::map<std::string, at::ScalarType> special_dtypes = {};  ///< dtypes of tensors by name; these take precedence
  bool buffers_only = false;
};

/// Computes the sizes of all modules and tensors. A shared tensor counts once, under its first name. A bool element
/// counts as one bit, as in Accelerate; tensors are rounded up to bytes.
ModuleSizes compute_module_sizes(const ModelDescription& model, const ModuleSizeOptions& options = {});

struct MaximumSizes {
  std::int64_t total_bytes = 0;
  std::int64_t largest_layer_bytes = 0;
  std::vector<std::string> largest_layers = {};  ///< all layers of that size
  friend bool operator==(const MaximumSizes&, const MaximumSizes&) = default;
};

/// Total size and largest layer. A layer is a module without submodules, or of a class that is not split.
MaximumSizes calculate_maximum_sizes(const ModelDescription& model,
                                     const std::vector<std::string>& no_split_module_classes = {});

/// The sorted names of each parameter that has several, in the order of their first names.
std::vector<std::vector<std::string>> find_tied_parameters(const ModelDescription& model);

}  // namespace accel

namespace accel::offload {

// The nodes of a device map plan: modules and single tensors, in the order in which they are placed. Thread rule: pure
// functions.

struct Node {
  std::string name = {};
  const ModuleDescription* module = nullptr;  ///< null: a tensor
  [[nodiscard]] bool can_be_split(const std::vector<std::string>& no_split_module_classes) const;
};

/// Whether `name` is `module` itself or something inside it.
[[nodiscard]] bool is_within(std::string_view name, std::string_view module);

/// A module's own parameters, then its children, then its own buffers.
std::vector<Node> parts_of(const ModuleDescription& module);

/// The size of the largest layers in `nodes`, and their names in order.
std::pair<std::int64_t, std::vector<std::string>> largest_layer(
    const std::vector<Node>& nodes, const ModuleSizes& sizes, const std::vector<std::string>& no_split_module_classes);

}  // namespace accel::offload
