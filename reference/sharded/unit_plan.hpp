#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/config/plugins/sharding.hpp"
#include "reference/mesh/parameter_layout.hpp"
#include "reference/modules/model_description.hpp"

/// Which modules of a model are units, and which parameters each unit's flat buffers contain. Pure. Thread rule:
/// values. Source: torch/distributed/fsdp/wrap.py, _recursive_wrap.
namespace accel::sharded {

/// The layout of a flat buffer of parameters that is cut into equal shards. Pure: no tensors, no communication.
///
/// Parameters follow one another in row-major order; zeros pad the end until the shards are equal. This is the layout
/// of PyTorch's FSDP1, so that sums over ranks agree with it bit for bit. With `use_orig_params`, each parameter starts
/// at a multiple of 16 bytes: `alignment`, in elements. Thread rule: values. Source:
/// torch/distributed/fsdp/_flat_param.py.
class FlatPlan {
 public:
  FlatPlan(std::vector<ParameterShape> parameters, int num_shards, int alignment = 1);

  [[nodiscard]] const std::vector<ParameterShape>& parameters() const { return parameters_; }
  [[nodiscard]] int num_shards() const { return num_shards_; }
  /// Elements including the gaps between parameters.
  [[nodiscard]] std::int64_t numel() const { return begins_.empty() ? 0 : range(begins_.size() - 1).end; }
  [[nodiscard]] std::int64_t shard_numel() const { return (numel() + num_shards_ - 1) / num_shards_; }
  /// Elements including the padding after the last parameter.
  [[nodiscard]] std::int64_t padded_numel() const { return shard_numel() * num_shards_; }
  /// Where a parameter lies in the flat buffer.
  [[nodiscard]] ElementRange range(std::size_t parameter) const {
    return {begins_[parameter], begins_[parameter] + parameters_[parameter].numel()};
  }
  /// Where a shard lies in the flat buffer.
  [[nodiscard]] ElementRange shard(int index) const { return {index * shard_numel(), (index + 1) * shard_numel()}; }
  /// How the ranks hold a parameter.
  [[nodiscard]] FlatShard placement(std::size_t parameter) const { return {range(parameter), shard_numel()}; }
  /// The elements of a parameter that a shard holds: see FlatShard.
  [[nodiscard]] ElementRange part(std::size_t parameter, int shard_index) const {
    return placement(parameter).part(shard_index);
  }
  [[nodiscard]] ElementRange part_in_shard(std::size_t parameter, int shard_index) const {
    return placement(parameter).part_in_shard(shard_index);
  }

 private:
  std::vector<ParameterShape> parameters_;
  std::vector<std::int64_t> begins_;
  int num_shards_;
};

/// Bytes per element while a unit computes.
[[nodiscard]] int computed_element_size(const ParameterDescription& parameter, const ShardingOptions& options);

/// Parameters of one dtype, of which either all require gradients or none does, and all are of experts or none is.
struct FlatParameterPlan {
  FlatPlan layout;
  std::vector<std::size_t> parameters = {};  ///< indices into the model's parameters, in the layout's order
  bool requires_grad = true, is_of_experts = false;
};

struct UnitPlan {
  std::string name = {}, class_name = {};
  std::vector<FlatParameterPlan> flats = {};
  /// Elements of its flat buffers.
  [[nodiscard]] std::int64_t numel() const;
};

/// The first unit is the model itself. A parameter that several units share belongs to the smallest unit that contains
/// them.
struct ModelPlan {
  std::vector<UnitPlan> units = {};
  std::vector<std::size_t> ignored = {};  ///< parameters that are not sharded
};

/// Whether the module of one unit contains that of the other.
[[nodiscard]] bool contains_unit(const UnitPlan& outer, const UnitPlan& inner);

/// Whether units are gathered before their turn: the options say so, and any two successive units, with the units that
/// contain them, are within the options' limit.
[[nodiscard]] bool gathers_ahead(const ModelPlan& plan, const ShardingOptions& options);

/// Throws ConfigError if a class or expression of the policy matches no module.
ModelPlan plan_units(const ModelDescription& model, const ShardingOptions& options, int num_shards);

}  // namespace accel::sharded
