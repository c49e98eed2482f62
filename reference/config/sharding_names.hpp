#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

/// Names that plugins, configuration files and the questions of `accel config` share. Their order counts: a number from
/// 1 means the name at that place. Source: accelerate/utils/constants.py.
namespace accel {

inline constexpr std::initializer_list<const char*> kShardingStrategies = {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD",
                                                                           "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"};
inline constexpr std::initializer_list<const char*> kWrapPolicies = {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP",
                                                                     "NO_WRAP"};
inline constexpr std::initializer_list<const char*> kBackwardPrefetches = {"BACKWARD_PRE", "BACKWARD_POST",
                                                                           "NO_PREFETCH"};
inline constexpr std::initializer_list<const char*> kStateDictTypes = {"FULL_STATE_DICT", "LOCAL_STATE_DICT",
                                                                       "SHARDED_STATE_DICT"};
inline constexpr std::initializer_list<const char*> kOffloadDevices = {"none", "cpu", "nvme"};
inline constexpr std::initializer_list<const char*> kMixedPrecisions = {"no", "fp16", "bf16", "fp8"};
inline bool is_mixed_precision(const std::string& name) {
  return std::find(kMixedPrecisions.begin(), kMixedPrecisions.end(), name) != kMixedPrecisions.end();
}
/// What a mixed precision casts to around layers in float8: "fp16", "bf16" or "no".
inline std::string precision_of_casts(const std::string& mixed_precision) {
  return mixed_precision == "fp8" ? "bf16" : mixed_precision;
}

}  // namespace accel
