#pragma once

#include <utility>
#include <vector>

/// Which rank computes which logical shards of a step, and the order in which their gradients are summed.
///
/// The sum is a binary tree over the shards, whatever ranks there are: shard 0 + shard 1, shard 2 + shard 3, then the
/// sums of these two, and so on; what has no right neighbour goes up unchanged. A rank adds what it can within its own
/// shards, which leaves a few subtrees, and the subtrees of all ranks in the order of their shards give the whole:
///
///     for (const auto node : nodes_of(shards_of(/*rank=*/1, /*num_ranks=*/3, /*num_shards=*/8))) ...   // 3, 4-5
///
/// Thread rule: pure.
namespace accel::elastic {

/// From `first` to before `last`.
struct ShardRange {
  int first = 0, last = 0;
  [[nodiscard]] int size() const { return last - first; }
  bool operator==(const ShardRange&) const = default;
};

/// Consecutive shards whose numbers differ by at most one between ranks; none for ranks beyond the number of shards.
ShardRange shards_of(int rank, int num_ranks, int num_shards);

/// A complete subtree: the 2^level shards from index * 2^level on.
struct TreeNode {
  int level = 0, index = 0;
  [[nodiscard]] bool is_left_of(const TreeNode& right) const {
    return level == right.level && index % 2 == 0 && right.index == index + 1;
  }
  [[nodiscard]] TreeNode parent() const { return {level + 1, index / 2}; }
  bool operator==(const TreeNode&) const = default;
};

/// Adds values that come in the order of their shards. `add(left, right)` adds the right one to the left.
template <typename Value, typename Add>
class TreeSum {
 public:
  struct Part {
    TreeNode node;
    Value value;
  };

  explicit TreeSum(Add add) : add_(std::move(add)) {}

  void push(TreeNode node, Value value) {
    parts_.push_back({node, std::move(value)});
    while (parts_.size() > 1 && parts_[parts_.size() - 2].node.is_left_of(parts_.back().node)) merge();
  }
  /// The subtrees so far, in the order of their shards.
  [[nodiscard]] const std::vector<Part>& parts() const { return parts_; }
  /// The sum of all shards, of which there is at least one.
  [[nodiscard]] Value finish() {
    while (parts_.size() > 1) merge();
    return std::move(parts_.back().value);
  }

 private:
  void merge() {
    auto& left = parts_[parts_.size() - 2];
    add_(left.value, parts_.back().value);
    left.node = left.node.parent();
    parts_.pop_back();
  }

  Add add_;
  std::vector<Part> parts_;
};

/// The subtrees that the sum within a range leaves, in the order of their shards.
std::vector<TreeNode> nodes_of(ShardRange range);

}  // namespace accel::elastic
