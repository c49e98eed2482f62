#include "reference/offload/module_sizes.hpp"

#include <algorithm>
#include <array>

namespace accel {
namespace {

// Descriptions store dtypes by name (c10::toString), because plans must not depend on tensors.
bool is_integer(const std::string& dtype) {
  constexpr std::array kIntegers{"Byte", "Char", "Short", "Int", "Long", "UInt16", "UInt32", "UInt64", "Bool"};
  return std::find(kIntegers.begin(), kIntegers.end(), dtype) != kIntegers.end();
}

// Bits instead of bytes: Accelerate's dtype_byte_size returns fractions for bool (1/8) and sub-byte integers.
std::int64_t bits_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::ScalarType::Bool: return 1;
    case at::ScalarType::Int2:
    case at::ScalarType::UInt2: return 2;
    case at::ScalarType::Int4:
    case at::ScalarType::UInt4: return 4;
    default: return 8 * static_cast<std::int64_t>(c10::elementSize(dtype));
  }
}

std::int64_t bits_of(const ParameterDescription& tensor, const ModuleSizeOptions& options) {
  if (const auto special = options.special_dtypes.find(tensor.shape.name); special != options.special_dtypes.end())
    return bits_of(special->second);
  const auto bits = tensor.dtype == "Bool" ? 1 : 8 * static_cast<std::int64_t>(tensor.element_size);
  // As in Accelerate, a larger dtype than the stored one does not increase the size.
  return options.dtype && !is_integer(tensor.dtype) ? std::min(bits_of(*options.dtype), bits) : bits;
}

// Appends the names of the module's parameters to the list of each parameter.
void list_places(const ModuleDescription& module, std::vector<std::vector<std::string>>& places) {
  for (std::size_t i = 0; i < module.parameters.size(); ++i)
    places[module.parameters[i]].push_back(module.name_of(module.keys.at(i)));
  for (const auto& child : module.children) list_places(child, places);
}

}  // namespace

// Entries keep the order of insertion, which get_balanced_memory relies on.
void ModuleSizes::add(const std::string& name, std::int64_t bytes) {
  const auto [place, is_new] = places_.emplace(name, entries_.size());
  if (is_new) entries_.emplace_back(name, 0);
  entries_[place->second].second += bytes;
}

std::int64_t ModuleSizes::of(const std::string& name) const {
  const auto place = places_.find(name);
  return place == places_.end() ? 0 : entries_[place->second].second;
}

ModuleSizes compute_module_sizes(const ModelDescription& model, const ModuleSizeOptions& options) {
  ModuleSizes sizes;
  sizes.add("", 0);
  const auto add = [&](const ParameterDescription& tensor) {
    const auto& name = tensor.shape.name;
    const auto bytes = (tensor.shape.numel() * bits_of(tensor, options) + 7) / 8;
    sizes.add("", bytes);
    // Adds to every module around the tensor.
    for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      sizes.add(name.substr(0, dot), bytes);
    sizes.add(name, bytes);
  };
  if (!options.buffers_only) std::for_each(model.parameters.begin(), model.parameters.end(), add);
  std::for_each(model.buffers.begin(), model.buffers.end(), add);
  return sizes;
}

MaximumSizes calculate_maximum_sizes(const ModelDescription& model,
                                     const std::vector<std::string>& no_split_module_classes) {
  const auto sizes = compute_module_sizes(model);
  auto [bytes, layers] = offload::largest_layer(offload::parts_of(model.root), sizes, no_split_module_classes);
  return {sizes.of(""), bytes, std::move(layers)};
}

std::vector<std::vector<std::string>> find_tied_parameters(const ModelDescription& model) {
  std::vector<std::vector<std::string>> places(model.parameters.size());
  list_places(model.root, places);
  // A parameter with a single name is not tied.
  std::erase_if(places, [](const auto& names) { return names.size() < 2; });
  for (auto& names : places) std::sort(names.begin(), names.end());
  return places;
}

namespace offload {

// Tensors and modules without submodules are placed as one piece.
bool Node::can_be_split(const std::vector<std::string>& no_split_module_classes) const {
  return module != nullptr && !module->children.empty() &&
         std::none_of(no_split_module_classes.begin(), no_split_module_classes.end(),
                      [&](const auto& name) { return is_class(module->class_name, name); });
}

// A plain prefix test would put "layer10" inside "layer1".
bool is_within(std::string_view name, std::string_view module) {
  return module.empty() || (name.starts_with(module) && (name.size() == module.size() || name[module.size()] == '.'));
}

// The order is Accelerate's: it decides which parts come onto the first device.
std::vector<Node> parts_of(const ModuleDescription& module) {
  std::vector<Node> parts;
  for (const auto& key : module.keys) parts.push_back({module.name_of(key)});
  for (const auto& child : module.children) parts.push_back({child.name, &child});
  for (const auto& buffer : module.buffers) parts.push_back({module.name_of(buffer.key)});
  return parts;
}

std::pair<std::int64_t, std::vector<std::string>> largest_layer(
    const std::vector<Node>& nodes, const ModuleSizes& sizes, const std::vector<std::string>& no_split_module_classes) {
  std::int64_t largest = 0;
  std::vector<std::string> layers;
  for (const auto& node : nodes) {
    std::pair<std::int64_t, std::vector<std::string>> of_node{sizes.of(node.name), {node.name}};
    if (node.can_be_split(no_split_module_classes)) {
      std::vector<Node> children;
      for (const auto& child : node.module->children) children.push_back({child.name, &child});
      of_node = largest_layer(children, sizes, no_split_module_classes);
    }
    // All layers of the largest size are kept: the planner reserves room until the last of them is placed.
    if (of_node.first > largest) layers.clear();
    if (of_node.first >= largest) layers.insert(layers.end(), of_node.second.begin(), of_node.second.end());
    largest = std::max(largest, of_node.first);
  }
  return {largest, std::move(layers)};
}

}  // namespace offload
}  // namespace accel
