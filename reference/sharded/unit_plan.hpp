#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/config/sharding.hpp"
#include "reference/sharded/flat_plan.hpp"

/// Which modules of a model are units, and what each unit's flat buffers hold. Pure. Thread rule: values.
/// Source: torch/distributed/fsdp/wrap.py, _recursive_wrap.
namespace accel::sharded {

/// Bytes of an element while a unit computes.
[[nodiscard]] int computed_element_size(const ParameterDescription& parameter, const ShardingOptions& options);

/// Parameters of one dtype that all need gradients, or all none.
struct FlatParameterPlan {
  FlatPlan layout;
  std::vector<std::size_t> parameters = {};  ///< of the model, in the layout's order
  bool requires_grad = true;
};

struct UnitPlan {
  std::string name = {}, class_name = {};
  std::vector<FlatParameterPlan> flats = {};
};

/// The first unit is the model itself. A parameter that several units share belongs to the smallest unit around them.
struct ModelPlan {
  std::vector<UnitPlan> units = {};
  std::vector<std::size_t> ignored = {};  ///< parameters that stay as they are
};

/// Throws ConfigError if a class or expression of the policy matches no module.
ModelPlan plan_units(const ModelDescription& model, const ShardingOptions& options, int num_shards);

}  // namespace accel::sharded
