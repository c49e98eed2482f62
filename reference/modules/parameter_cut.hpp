#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"

namespace torch::nn {
class Module;
}

/// Parameters of which each rank of a group holds a part: those of tensor-parallel layers and of experts. Everything
/// that needs complete values (initial weights, clipping, checkpoints) reads it from here.
///
///     const auto cuts = accel::parallel::parameter_cuts(*model);
///     const auto cut = cuts.find("blocks.0.attention.projection.weight");
///     if (cut != cuts.end()) complete = cut->second.whole_of(parameter);
///
/// Thread rule: the rank's thread.
namespace accel::parallel {

struct SectionPart {
  int part = 0, num_parts = 1;
};
/// Elements [begin, begin + length) of a dimension.
struct PartRange {
  std::int64_t begin = 0, length = 0;
};
/// The elements of a part of `length` elements. Parts are equal if the length divides, else the last ones are shorter.
/// Source: torch.chunk, by which DTensor divides.
[[nodiscard]] PartRange range_of_part(std::int64_t length, SectionPart which);

/// Part `which` of a tensor whose dimension `dim` consists of `sections`: the parts of all sections, concatenated in
/// new memory.
[[nodiscard]] at::Tensor part_of_sections(const at::Tensor& whole, std::int64_t dim,
                                          const std::vector<std::int64_t>& sections, SectionPart which);

/// How one parameter is cut. Dimension `dim` of the complete tensor consists of `sections`, each of which is divided
/// into parts as by range_of_part; the rank's parts of all sections are concatenated. Queries, keys and values of one
/// linear layer are three sections.
struct ParameterCut {
  std::string axis = {};  ///< of the mesh: "tp" or "ep"
  Group group = {};
  std::int64_t dim = 0;
  std::vector<std::int64_t> sections = {};

  /// Whether a tensor of these sizes can be cut.
  [[nodiscard]] bool fits(const std::vector<std::int64_t>& sizes_of_whole) const;
  /// The length of the complete tensor along `dim`.
  [[nodiscard]] std::int64_t length_of_whole() const;
  /// The sizes of the complete tensor.
  [[nodiscard]] std::vector<std::int64_t> whole_sizes(const at::Tensor& part) const;
  /// This rank's part of a complete tensor, in new memory.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& whole) const;
  /// The complete tensor, on every rank of the group. Collective.
  [[nodiscard]] at::Tensor whole_of(const at::Tensor& part) const;
};

/// Base of modules whose own parameters are cut.
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

}  // namespace accel::parallel
