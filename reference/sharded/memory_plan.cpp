#include "reference/sharded/memory_plan.hpp"

#include <algorithm>
#include <vector>

namespace accel::sharded {
namespace {

class MemoryPlanner {
 public:
  MemoryPlanner(const ModelPlan& plan, const ModelDescription& model, const ShardingOptions& options)
      : plan_(plan), model_(model), options_(options) {}

  MemoryPlan memory(std::int64_t state_bytes_per_element) const {
    MemoryPlan memory;
    for (const auto& unit : plan_.units) {
      for (const auto& flat : unit.flats) {
        const auto own = stored_size(flat), shard = flat.layout.shard_numel() * own;
        // Full parameters in a compute dtype are a second copy beside the shard; otherwise the shard is a view of them,
        // see FlatParameter::make_storage.
        const bool is_cast = computed_size(flat) != own;
        memory.parameters += options_.parameters ? shard : whole_bytes(flat) + (is_cast ? shard : 0);
        if (!flat.requires_grad) continue;
        memory.gradients += shard;
        // Counts the shard's padding, too, for which optimizers keep no state: an upper bound.
        memory.optimizer += flat.layout.shard_numel() * state_bytes_per_element;
      }
    }
    if (options_.parameters) memory.gathered = gathered();
    return memory;
  }

 private:
  [[nodiscard]] const ParameterDescription& first_of(const FlatParameterPlan& flat) const {
    return model_.parameters[flat.parameters.front()];
  }
  [[nodiscard]] std::int64_t stored_size(const FlatParameterPlan& flat) const { return first_of(flat).element_size; }
  [[nodiscard]] std::int64_t computed_size(const FlatParameterPlan& flat) const {
    return computed_element_size(first_of(flat), options_);
  }
  [[nodiscard]] std::int64_t whole_bytes(const FlatParameterPlan& flat) const {
    return flat.layout.padded_numel() * computed_size(flat);
  }
  [[nodiscard]] std::int64_t whole_bytes(const UnitPlan& unit) const {
    std::int64_t bytes = 0;
    for (const auto& flat : unit.flats) bytes += whole_bytes(flat);
    return bytes;
  }

  [[nodiscard]] std::int64_t frozen_bytes(const UnitPlan& unit) const {
    std::int64_t bytes = 0;
    for (const auto& flat : unit.flats) bytes += flat.requires_grad ? 0 : whole_bytes(flat);
    return bytes;
  }

  // The peak of gathered parameters. A unit is full together with the units that contain it and, with prefetching, the
  // next one. In backward, frozen parameters of later units are still full, because gradients may flow through them
  // until the pass ends. Without resharding, all units stay full until backward.
  [[nodiscard]] std::int64_t gathered() const {
    const bool prefetches = gathers_ahead(plan_, options_);
    std::int64_t most = 0, all = 0;
    for (std::size_t i = 0; i < plan_.units.size(); ++i) {
      std::int64_t here = 0;
      for (std::size_t outer = 0; outer < i; ++outer)
        here += contains_unit(plan_.units[outer], plan_.units[i]) ? whole_bytes(plan_.units[outer]) : 0;
      here += whole_bytes(plan_.units[i]);
      for (std::size_t later = i + 1; later < plan_.units.size(); ++later) here += frozen_bytes(plan_.units[later]);
      // Forward gathers the later of two units ahead, backward the earlier.
      const bool has_next = i + 1 < plan_.units.size();
      if (prefetches && has_next &&
          std::min(plan_.units[i].numel(), plan_.units[i + 1].numel()) <= options_.max_prefetched_numel)
        here += whole_bytes(plan_.units[i + 1]);
      most = std::max(most, here);
      all += whole_bytes(plan_.units[i]);
    }
    return options_.reshard_after_forward ? most : all;
  }

  const ModelPlan& plan_;
  const ModelDescription& model_;
  const ShardingOptions& options_;
};

}  // namespace

MemoryPlan plan_memory(const ModelPlan& plan, const ModelDescription& model, const ShardingOptions& options,
                       std::int64_t state_bytes_per_element) {
  return MemoryPlanner(plan, model, options).memory(state_bytes_per_element);
}

}  // namespace accel::sharded
