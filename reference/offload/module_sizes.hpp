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

/// What each module of a model weighs.
///
///     const auto sizes = accel::compute_module_sizes(model, {.dtype = at::kHalf});
///     sizes.of("") == 2 * number_of_elements
///
/// Thread rule: pure functions. Source: accelerate/utils/modeling.py.
namespace accel {

/// Bytes by name of module or tensor, in the order of the model's parameters, then buffers.
class ModuleSizes {
 public:
  void add(const std::string& name, std::int64_t bytes);
  /// 0 where there is nothing: a module without tensors, a shared tensor's second place.
  [[nodiscard]] std::int64_t of(const std::string& name) const;
  [[nodiscard]] const std::vector<std::pair<std::string, std::int64_t>>& entries() const& { return entries_; }
  [[nodiscard]] std::vector<std::pair<std::string, std::int64_t>> entries() && { return std::move(entries_); }

 private:
  std::vector<std::pair<std::string, std::int64_t>> entries_;
  std::map<std::string, std::size_t> places_;
};

struct ModuleSizeOptions {
  std::optional<at::ScalarType> dtype = {};  ///< what floating point is loaded as, where that is smaller
  std::map<std::string, at::ScalarType> special_dtypes = {};  ///< of tensors by name, whatever they are
  bool buffers_only = false;
};

/// A shared tensor counts once, at its first place. Of a bool an element is a bit, and tensors are rounded up to bytes.
ModuleSizes compute_module_sizes(const ModelDescription& model, const ModuleSizeOptions& options = {});

struct MaximumSizes {
  std::int64_t total_bytes = 0;
  std::int64_t largest_layer_bytes = 0;
  std::vector<std::string> largest_layers = {};  ///< all of that size
  friend bool operator==(const MaximumSizes&, const MaximumSizes&) = default;
};

/// A layer has no children, or is of a class that is not to be split.
MaximumSizes calculate_maximum_sizes(const ModelDescription& model,
                                     const std::vector<std::string>& no_split_module_classes = {});

/// The names of each parameter that has several, in the order of first places, names sorted.
std::vector<std::vector<std::string>> find_tied_parameters(const ModelDescription& model);

}  // namespace accel

namespace accel::offload {

// What a device map is made of: modules and single tensors, in the order in which they are placed. Thread rule: pure
// functions.

struct Node {
  std::string name = {};
  const ModuleDescription* module = nullptr;  ///< null: a tensor
  [[nodiscard]] bool can_be_split(const std::vector<std::string>& no_split_module_classes) const;
};

/// Whether `name` is the module or tensor itself, or within it.
[[nodiscard]] bool is_within(std::string_view name, std::string_view module);

/// A module's own parameters, then its children, then its own buffers.
std::vector<Node> parts_of(const ModuleDescription& module);

/// Of the layers in `nodes`; the layers of that size in their order.
std::pair<std::int64_t, std::vector<std::string>> largest_layer(
    const std::vector<Node>& nodes, const ModuleSizes& sizes, const std::vector<std::string>& no_split_module_classes);

}  // namespace accel::offload
