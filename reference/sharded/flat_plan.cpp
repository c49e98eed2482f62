#include "reference/sharded/flat_plan.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::sharded {

Range intersection(Range a, Range b) {
  const Range both{std::max(a.begin, b.begin), std::min(a.end, b.end)};
  return both.begin < both.end ? both : Range{};
}

FlatPlan::FlatPlan(std::vector<ParameterShape> parameters, int num_shards, int alignment)
    : parameters_(std::move(parameters)), num_shards_(num_shards) {
  check_argument(num_shards >= 1, "num_shards: expected 1 or more, got {}", num_shards);
  std::int64_t end = 0;
  for (const auto& parameter : parameters_) {
    begins_.push_back((end + alignment - 1) / alignment * alignment);
    end = begins_.back() + parameter.numel();
  }
}

Range FlatPlan::part(std::size_t parameter, int shard_index) const {
  const auto own = range(parameter);
  const auto held = intersection(own, shard(shard_index));
  return held.size() == 0 ? Range{} : Range{held.begin - own.begin, held.end - own.begin};
}

Range FlatPlan::part_in_shard(std::size_t parameter, int shard_index) const {
  const auto held = intersection(range(parameter), shard(shard_index));
  const auto first = shard(shard_index).begin;
  return held.size() == 0 ? Range{} : Range{held.begin - first, held.end - first};
}

}  // namespace accel::sharded
