#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// A model as plans see it: its modules, and what its tensors are. Pure. Thread rule: values.
namespace accel {

struct ParameterShape {
  std::string name = {};
  std::vector<std::int64_t> sizes = {};
  [[nodiscard]] std::int64_t numel() const;
};

/// A parameter or buffer of a model, named by its first place in it.
struct ParameterDescription {
  ParameterShape shape = {};
  std::string dtype = {};
  int element_size = 4;  ///< bytes
  bool requires_grad = true;
};

/// A module: what of a model plans are made from. Tensors are indices; a shared one stands at each of its places.
struct ModuleDescription {
  std::string name = {};        ///< dotted, "" for the model itself
  std::string class_name = {};  ///< as the program spells it, with namespaces or not
  bool is_container = false;    ///< holds modules and has no forward of its own: ModuleList, ModuleDict
  std::vector<std::size_t> parameters = {};
  std::vector<ModuleDescription> children = {};
  std::vector<std::string> keys = {};  ///< by which the module knows its parameters, in their order
  struct Buffer {
    std::string key = {};
    std::size_t index;
  };
  std::vector<Buffer> buffers = {};

  /// Dotted, of a tensor of its own.
  [[nodiscard]] std::string name_of(const std::string& key) const { return name.empty() ? key : name + "." + key; }
};

struct ModelDescription {
  std::vector<ParameterDescription> parameters = {};
  ModuleDescription root = {};
  std::vector<ParameterDescription> buffers = {};
};

/// Whether a class is the one that is wanted: "net::BlockImpl" is "Block", "BlockImpl" and "net::BlockImpl".
[[nodiscard]] bool is_class(const std::string& spelled, const std::string& wanted);

}  // namespace accel
