#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/modules/divided_parameter.hpp"

namespace torch::nn {
class Module;
}

/// How the layers of a model declare that each rank of a group holds a part of their weights. Everything that needs
/// complete values (initial weights, clipping, checkpoints) reads this declaration.
///
///     const auto cuts = accel::parallel::parameter_cuts(*model);
///     const auto cut = cuts.find("blocks.0.attention.projection.weight");
///     if (cut != cuts.end()) complete = cut->second.whole_of(parameter);
///
/// Thread rule: the rank's thread.
namespace accel::parallel {

/// How one parameter is divided over a group: see Shard for `dim` and `sections`. Queries, keys and values of one
/// linear layer are three sections.
struct ParameterCut {
  std::string axis = {};  ///< of the mesh: "tp" or "ep"
  Group group = {};
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections = {};

  [[nodiscard]] Shard shard() const { return {.dim = dim, .sections = sections}; }
  /// The axis of the mesh. Throws ArgumentError if the name is none.
  [[nodiscard]] MeshAxis mesh_axis() const;
  /// The part of this rank.
  [[nodiscard]] ParameterLayout::Division division() const;
  /// The sizes of the complete tensor.
  [[nodiscard]] std::vector<std::int64_t> whole_sizes(const at::Tensor& part) const;
  /// This rank's part of a complete tensor, in new memory.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& whole) const;
  /// The complete tensor, on every rank of the group. Collective.
  [[nodiscard]] at::Tensor whole_of(const at::Tensor& part) const;
};

/// Base of modules whose own parameters are divided over ranks.
class CutModule {
 public:
  virtual ~CutModule() = default;
  /// By the names that the module registered; parameters that are complete are absent. Empty in a group of one rank.
  [[nodiscard]] virtual std::map<std::string, ParameterCut> cuts() const = 0;

 protected:
  /// Throws StateError if parameters are cut. For torch::save and torch::load, which would write or read this rank's
  /// parts: `what` is the call.
  void check_is_complete(const char* what) const;
};

/// The cuts of all parameters inside `module`, by their qualified names.
[[nodiscard]] std::map<std::string, ParameterCut> parameter_cuts(const torch::nn::Module& module);
/// The same as layouts of this rank. The module's parameters are this rank's parts.
[[nodiscard]] std::map<std::string, DividedParameter> divided_parameters(const torch::nn::Module& module);

}  // namespace accel::parallel
