#pragma once

#include <accel/accel.hpp>
#include <string>

/// Options for trainings of the model in sharded_training.hpp. Thread rule: values.
namespace accel::testing {

inline FullyShardedDataParallelPlugin wrapping_blocks(const std::string& strategy = "FULL_SHARD") {
  return {.sharding_strategy = strategy,
          .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
          .transformer_cls_names_to_wrap = {"Block"},
          .wrap_modules = {"tail\\.[02]"}};
}

inline FullyShardedDataParallelPlugin second_version() {
  auto plugin = wrapping_blocks();
  plugin.fsdp_version = 2;
  plugin.sharding_strategy.reset();
  return plugin;
}
inline AcceleratorOptions ddp() { return {.ddp_kwargs = {.find_unused_parameters = true}}; }
}  // namespace accel::testing
