#include "reference/elastic/shard_sum.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel::elastic {

void ShardSum::AddVectors::operator()(at::Tensor& left, const at::Tensor& right) const { left.add_(right); }

ShardSum::ShardSum(Group group, int num_shards)
    : group_(std::move(group)), num_shards_(num_shards), shards_(shards_of(group_.rank(), group_.size(), num_shards)) {}

void ShardSum::add(int shard, at::Tensor vector) { own_.push({0, shard}, std::move(vector)); }

at::Tensor ShardSum::finish(const at::Tensor& like) { return group_.size() == 1 ? own_.finish() : exchange(like); }

// A row for each rank and each own subtree: the part of the elements that the rank sums. Filled with zeros at the end.
at::Tensor ShardSum::rows_to_send(const at::Tensor& like, std::int64_t part) const {
  const auto num_own = static_cast<std::int64_t>(own_.parts().size());
  auto rows = at::zeros({group_.size(), num_own, part}, like.options());
  for (std::int64_t subtree = 0; subtree < num_own; ++subtree) {
    const auto& vector = own_.parts()[subtree].value;
    for (std::int64_t rank = 0; rank < group_.size(); ++rank) {
      const auto begin = std::min(rank * part, like.numel()), count = std::min(part, like.numel() - begin);
      rows[rank][subtree].narrow(0, 0, count).copy_(vector.narrow(0, begin, count));
    }
  }
  return rows.view({group_.size() * num_own, part});
}

// Every rank sums one part of the elements of all subtrees.
at::Tensor ShardSum::exchange(const at::Tensor& like) const {
  const int num_ranks = group_.size();
  const auto part = (like.numel() + num_ranks - 1) / num_ranks;
  std::vector<TreeNode> nodes;
  std::vector<std::int64_t> received_rows;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto of_rank = nodes_of(shards_of(rank, num_ranks, num_shards_));
    nodes.insert(nodes.end(), of_rank.begin(), of_rank.end());
    received_rows.push_back(static_cast<std::int64_t>(of_rank.size()));
  }
  auto received = at::empty({static_cast<std::int64_t>(nodes.size()), part}, like.options());
  const std::vector<std::int64_t> sent_rows(num_ranks, static_cast<std::int64_t>(own_.parts().size()));
  group_.all_to_all(received, rows_to_send(like, part), received_rows, sent_rows).wait();
  TreeSum<at::Tensor, AddVectors> sum{AddVectors()};
  for (std::size_t row = 0; row < nodes.size(); ++row) sum.push(nodes[row], received[static_cast<std::int64_t>(row)]);
  auto all = at::empty({num_ranks * part}, like.options());
  group_.all_gather_into(all, sum.finish()).wait();
  return all.narrow(0, 0, like.numel());
}

}  // namespace accel::elastic
