#pragma once

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/sharded/parameter_shards.hpp"

namespace accel {

/// The parameters of a model that its layers have cut over tensor-parallel or expert-parallel ranks. Checkpoints
/// contain complete tensors, which do not depend on the layout.
///
/// Below the cut, a model may be sharded: `inner` then divides the rank's part further. Thread rule: the rank's thread.
class CutParameters final : public sharded::ParameterShards {
 public:
  explicit CutParameters(const torch::nn::Module& module);
  void set_inner(const sharded::ParameterShards* inner) { inner_ = inner; }

  [[nodiscard]] bool empty() const { return by_name_.empty(); }
  /// Null for a parameter that is complete, or of another model.
  [[nodiscard]] const parallel::ParameterCut* find(const at::Tensor& parameter) const;
  [[nodiscard]] const parallel::ParameterCut* find(const std::string& name) const;
  [[nodiscard]] const std::map<std::string, parallel::ParameterCut>& by_name() const { return by_name_; }

  /// The parameters of experts that ranks divide, and all others.
  [[nodiscard]] std::pair<NamedTensors, NamedTensors> split_experts(const NamedTensors& parameters) const;

  /// Replaces the parts in a state dict by complete tensors. Collective.
  [[nodiscard]] NamedTensors complete(NamedTensors state) const;
  /// Replaces complete tensors by functions that load this rank's part. Throws CheckpointError, which begins with
  /// `what` and lists all tensors whose sizes differ from the complete parameters'. `parts` are the rank's own tensors.
  [[nodiscard]] std::map<std::string, StoredWeight> parts_of(const std::string& what, const NamedTensors& parts,
                                                             std::map<std::string, StoredWeight> weights) const;

  /// --- ParameterShards ---
  [[nodiscard]] bool holds(const at::Tensor& parameter) const override { return find(parameter) != nullptr; }
  [[nodiscard]] const std::string& name_of(const at::Tensor& parameter) const override;
  [[nodiscard]] at::Tensor full_tensor_of(const at::Tensor& parameter, const at::Tensor& part) const override;
  [[nodiscard]] sharded::ShardPiece piece_of(const at::Tensor& parameter, const at::Tensor& part) const override;
  [[nodiscard]] at::Tensor part_of(const at::Tensor& parameter, const at::Tensor& whole) const override;
  /// Parts along a dimension are not ranges of elements, so they are saved as complete tensors only.
  [[nodiscard]] bool writes_pieces() const override { return false; }

 private:
  struct Entry {
    std::string name;
    parallel::ParameterCut cut;
  };
  [[nodiscard]] const Entry& at(const at::Tensor& parameter) const;

  std::map<std::string, parallel::ParameterCut> by_name_;
  std::unordered_map<const c10::TensorImpl*, Entry> by_tensor_;
  const sharded::ParameterShards* inner_ = nullptr;  // null: the rank holds its part completely
};

}  // namespace accel
