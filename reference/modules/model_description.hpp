#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The structure of a model as plans use it: its modules, and the shapes of its tensors. Pure. Thread rule: values.
namespace accel {

struct ParameterShape {
  std::string name = {};
  std::vector<std::int64_t> sizes = {};
  [[nodiscard]] std::int64_t numel() const;
};

/// A parameter or buffer of a model, under its first name.
struct ParameterDescription {
  ParameterShape shape = {};
  std::string dtype = {};
  int element_size = 4;  ///< bytes
  bool requires_grad = true;
  bool is_of_experts = false;  ///< expert-parallel ranks hold different parts
};

/// One module. Tensors are indices into ModelDescription; a shared tensor is listed at each of its places.
struct ModuleDescription {
  std::string name = {};        ///< dotted, "" for the model itself
  std::string class_name = {};  ///< as the program spells it, with or without namespaces
  bool is_container = false;    ///< holds modules but has no forward: ModuleList, ModuleDict
  std::vector<std::size_t> parameters = {};
  std::vector<ModuleDescription> children = {};
  std::vector<std::string> keys = {};  ///< names of `parameters` inside the module, in the same order
  struct Buffer {
    std::string key = {};
    std::size_t index;
  };
  std::vector<Buffer> buffers = {};

  /// The dotted name of one of the module's own tensors.
  [[nodiscard]] std::string name_of(const std::string& key) const { return name.empty() ? key : name + "." + key; }
};

struct ModelDescription {
  std::vector<ParameterDescription> parameters = {};
  ModuleDescription root = {};
  std::vector<ParameterDescription> buffers = {};
};

/// Whether the module's children are called through accel::call: a Sequential does so, and programs should call the
/// elements of a ModuleList or ModuleDict so. How other modules call their children is unknown.
[[nodiscard]] bool calls_its_children(const ModuleDescription& module);

/// Whether a class matches a name: "net::BlockImpl" matches "Block", "BlockImpl" and "net::BlockImpl".
[[nodiscard]] bool is_class(const std::string& spelled, const std::string& wanted);

}  // namespace accel
