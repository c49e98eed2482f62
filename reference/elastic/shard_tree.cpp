#include "reference/elastic/shard_tree.hpp"

#include <algorithm>

namespace accel::elastic {

ShardRange shards_of(int rank, int num_ranks, int num_shards) {
  const auto begin = [&](int of) { return of * (num_shards / num_ranks) + std::min(of, num_shards % num_ranks); };
  return {begin(rank), begin(rank + 1)};
}

std::vector<TreeNode> nodes_of(ShardRange range) {
  struct Nothing {};
  const auto add = [](Nothing&, const Nothing&) {};
  TreeSum<Nothing, decltype(add)> sum(add);
  for (int shard = range.first; shard < range.last; ++shard) sum.push({0, shard}, {});
  std::vector<TreeNode> nodes;
  for (const auto& part : sum.parts()) nodes.push_back(part.node);
  return nodes;
}

}  // namespace accel::elastic
