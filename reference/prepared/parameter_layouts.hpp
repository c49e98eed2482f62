#pragma once

#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/modules/divided_parameter.hpp"
#include "reference/modules/model_stages.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

/// How the ranks of the mesh hold the parameters of one model: divided by its layers (tensor parallelism, experts),
/// sharded by FSDP, or both. Parameters without an entry are complete on every rank.
///
///     if (const auto* divided = layouts.find(parameter)) complete = divided->complete_of(moment);
///
/// Checkpoints contain complete tensors, which do not depend on the layout. Thread rule: the rank's thread.
class ParameterLayouts {
 public:
  /// What the layers of the module declare. Its parameters must not be sharded yet.
  explicit ParameterLayouts(const torch::nn::Module& module);
  /// Adds that FSDP shards what the layers have left to this rank.
  void add_shards(const std::vector<std::pair<at::Tensor, DividedParameter>>& shards);

  /// Null for a parameter that is complete, or of another model.
  [[nodiscard]] const DividedParameter* find(const at::Tensor& parameter) const;

  /// The complete model, of which this rank of a pipeline has stages; null without a pipeline of several ranks.
  [[nodiscard]] const ModelStages* stages() const { return stages_ ? &*stages_ : nullptr; }
  /// A parameter of this rank's stages, in `stages()->entries`; null for others, and without a pipeline.
  [[nodiscard]] const ModelStages::Entry* entry_in_stages(const at::Tensor& parameter) const;

  /// Removes the weights of other stages from a file's; `own`: the tensors of this rank.
  void keep_own(const NamedTensors& own, std::map<std::string, StoredWeight>& weights) const;

  /// --- what layers divide, without FSDP's shards ---
  [[nodiscard]] bool has_divided_layers() const { return !of_layers_.empty(); }
  [[nodiscard]] bool has_layers_over(MeshAxis axis) const;
  /// Null for a parameter that no layer divides.
  [[nodiscard]] const DividedParameter* of_layer(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, DividedParameter>& of_layers() const { return of_layers_; }
  /// The parameters of experts that ranks divide, and all others.
  [[nodiscard]] std::pair<NamedTensors, NamedTensors> split_experts(const NamedTensors& parameters) const;
  /// Replaces the parts in a state dict by complete tensors. Of a pipeline, the first rank gets those of all stages,
  /// and the others none. Collective.
  [[nodiscard]] NamedTensors complete(NamedTensors state) const;
  /// Replaces complete tensors by functions that load this rank's part. Throws CheckpointError, which begins with
  /// `what` and lists all tensors whose sizes differ from the complete parameters'. `parts` are the rank's own tensors.
  /// Those of other stages are left out.
  [[nodiscard]] std::map<std::string, StoredWeight> parts_of(const std::string& what, const NamedTensors& parts,
                                                             std::map<std::string, StoredWeight> weights) const;

 private:
  std::optional<ModelStages> stages_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_in_stages_;  // among the entries
  std::map<std::string, DividedParameter> of_layers_;
  std::unordered_map<const c10::TensorImpl*, DividedParameter> by_tensor_;
};

}  // namespace accel
