#pragma once

#include <cstdint>
#include <vector>

/// Which positions of a sequence each context-parallel rank holds. Pure functions without tensors or communication;
/// shard_sequence.hpp and context_attention.hpp move tensors accordingly.
///
///     const SequencePlan plan({.length = 8, .num_ranks = 2, .order = SequenceOrder::kZigzag});
///     plan.positions(0);    // 0, 1, 6, 7
///     plan.positions(1);    // 2, 3, 4, 5
///
/// Thread rule: values. Source: torch/distributed/tensor/experimental/_context_parallel/_load_balancer.py.
namespace accel::parallel {

enum class SequenceOrder {
  kContiguous,  ///< rank r holds part r of equal parts
  kZigzag       ///< rank r of P holds the chunks r and 2 * P - 1 - r of 2 * P: equal work under a causal mask
};

struct SequenceSizes {
  std::int64_t length = 0;  ///< positions of the complete sequence
  int num_ranks = 1;
  SequenceOrder order = SequenceOrder::kContiguous;
};

/// The positions of each rank, as chunks of equal length.
class SequencePlan {
 public:
  /// Throws ArgumentError if the length is not a multiple of the number of chunks.
  explicit SequencePlan(SequenceSizes sizes);

  [[nodiscard]] std::int64_t length() const { return sizes_.length; }
  [[nodiscard]] int num_ranks() const { return sizes_.num_ranks; }
  /// Positions per rank.
  [[nodiscard]] std::int64_t local_length() const { return sizes_.length / sizes_.num_ranks; }
  [[nodiscard]] std::int64_t chunk_length() const { return sizes_.length / num_chunks(); }
  /// The numbers of a rank's chunks, ascending: one, or two under kZigzag.
  [[nodiscard]] std::vector<int> chunks(int rank) const;
  /// A rank's positions in the complete sequence, ascending: the position ids of its tokens.
  [[nodiscard]] std::vector<std::int64_t> positions(int rank) const;
  /// The positions of rank 0, rank 1, ...: the order in which an all-gather concatenates the parts.
  [[nodiscard]] std::vector<std::int64_t> gathered_positions() const;
  /// The inverse: for each position, its index in gathered_positions().
  [[nodiscard]] std::vector<std::int64_t> gathered_indices() const;

 private:
  [[nodiscard]] int num_chunks() const;
  SequenceSizes sizes_;
};

/// Two chunks of which the first attends to the second, as indices in the chunks() of the two ranks.
struct ChunkPair {
  int queries = 0, keys = 0;
  bool is_diagonal = false;  ///< the same chunk under a causal mask: a query attends to the keys up to its own position
  friend bool operator==(const ChunkPair&, const ChunkPair&) = default;
};
/// What one rank's queries attend to among another rank's keys. Pairs in which no query attends to a key are absent.
[[nodiscard]] std::vector<ChunkPair> attended_chunks(const SequencePlan& plan, int query_rank, int key_rank,
                                                     bool is_causal);

/// Queries in tiles of `tile_length` rows. A tile begins at a multiple of `tile_length`, and every query is in the row
/// of its position; rows of other ranks' positions stay empty.
struct QueryTiles {
  std::vector<std::int64_t> begins = {};  ///< first positions, ascending
  std::vector<std::int64_t> rows = {};    ///< per query, its row among the rows of all tiles
};
/// `positions` are ascending.
[[nodiscard]] QueryTiles plan_query_tiles(const std::vector<std::int64_t>& positions, std::int64_t tile_length);

}  // namespace accel::parallel
