#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reference/offload/module_sizes.hpp"

/// What a device map is made of: modules and single tensors, in the order in which they are placed. Thread rule: pure
/// functions.
namespace accel::offload {

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
