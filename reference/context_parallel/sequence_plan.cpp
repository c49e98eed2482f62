#include "reference/context_parallel/sequence_plan.hpp"

#include <iterator>

#include "reference/core/errors.hpp"

namespace accel::parallel {

SequencePlan::SequencePlan(SequenceSizes sizes) : sizes_(sizes) {
  check_argument(sizes.num_ranks > 0, "a sequence over {} ranks; expected at least 1", sizes.num_ranks);
  check_argument(sizes.length >= 0 && sizes.length % num_chunks() == 0,
                 "a sequence of {} positions does not divide over {} context-parallel ranks{}; expected a multiple of "
                 "{}; pad the sequence",
                 sizes.length, sizes.num_ranks, sizes.order == SequenceOrder::kZigzag ? " in zigzag order" : "",
                 num_chunks());
}

int SequencePlan::num_chunks() const {
  return sizes_.order == SequenceOrder::kZigzag ? 2 * sizes_.num_ranks : sizes_.num_ranks;
}

std::vector<int> SequencePlan::chunks(int rank) const {
  check_argument(rank >= 0 && rank < num_ranks(), "rank {} of a sequence over {} ranks; expected 0 to {}", rank,
                 num_ranks(), num_ranks() - 1);
  if (sizes_.order == SequenceOrder::kContiguous) return {rank};
  return {rank, num_chunks() - 1 - rank};
}

std::vector<std::int64_t> SequencePlan::positions(int rank) const {
  std::vector<std::int64_t> positions;
  positions.reserve(static_cast<std::size_t>(local_length()));
  for (const auto chunk : chunks(rank))
    for (std::int64_t i = 0; i < chunk_length(); ++i) positions.push_back(chunk * chunk_length() + i);
  return positions;
}

std::vector<std::int64_t> SequencePlan::gathered_positions() const {
  std::vector<std::int64_t> all;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const auto own = positions(rank);
    all.insert(all.end(), own.begin(), own.end());
  }
  return all;
}

std::vector<std::int64_t> SequencePlan::gathered_indices() const {
  const auto positions = gathered_positions();
  std::vector<std::int64_t> indices(positions.size());
  for (std::size_t i = 0; i < positions.size(); ++i)
    indices[static_cast<std::size_t>(positions[i])] = static_cast<std::int64_t>(i);
  return indices;
}

std::vector<ChunkPair> attended_chunks(const SequencePlan& plan, int query_rank, int key_rank, bool is_causal) {
  const auto queries = plan.chunks(query_rank), keys = plan.chunks(key_rank);
  std::vector<ChunkPair> pairs;
  for (int i = 0; i < std::ssize(queries); ++i) {
    for (int j = 0; j < std::ssize(keys); ++j) {
      if (is_causal && keys[j] > queries[i]) continue;
      pairs.push_back({.queries = i, .keys = j, .is_diagonal = is_causal && keys[j] == queries[i]});
    }
  }
  return pairs;
}

QueryTiles plan_query_tiles(const std::vector<std::int64_t>& positions, std::int64_t tile_length) {
  QueryTiles tiles;
  for (const auto position : positions) {
    const auto row = position % tile_length;
    if (tiles.begins.empty() || tiles.begins.back() != position - row) tiles.begins.push_back(position - row);
    tiles.rows.push_back((std::ssize(tiles.begins) - 1) * tile_length + row);
  }
  return tiles;
}

}  // namespace accel::parallel
