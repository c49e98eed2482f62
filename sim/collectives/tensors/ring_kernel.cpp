// Note [Ring order]
// Gloo's ring adds the ranks' elements of a chunk in a fixed order (ring_plan.hpp) and rounds after every step.
// Equal bits require the same order, the same operand order (own first) and no wider accumulator. The kernel
// keeps the order but not the data flow: it takes a tile of a chunk through all ranks before it starts the
// next, so the accumulator stays in the first-level cache.
#include "sim/collectives/tensors/ring_kernel.hpp"

#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <cstring>
#include <type_traits>
#include <vector>

#include "reference/core/errors.hpp"

namespace accel::sim {
namespace {

// An accumulator of this size stays in the first-level cache while the pieces of all ranks stream past.
constexpr std::int64_t kTileBytes = 16 << 10;
// Below this many bytes over all ranks, waking another core takes longer than it saves.
constexpr std::int64_t kSerialBytes = 2 << 20;

// Integers are added as unsigned 64-bit values: overflow then wraps, as Gloo's does in practice, without
// undefined behaviour.
template <typename T>
T combine_sum(T own, T received) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(own) + static_cast<std::uint64_t>(received));
  } else {
    return own + received;
  }
}

template <typename T>
T combine_product(T own, T received) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(own) * static_cast<std::uint64_t>(received));
  } else {
    return own * received;
  }
}

struct Sum {
  template <typename T>
  T operator()(T own, T received) const {
    return combine_sum(own, received);
  }
};
struct Product {
  template <typename T>
  T operator()(T own, T received) const {
    return combine_product(own, received);
  }
};
// The comparison decides what happens to NaN: with a NaN on either side it is false, and `own` is kept, as in
// std::min. Rewriting it, for example with fmin, would change Gloo's result.
struct Min {
  template <typename T>
  T operator()(T own, T received) const {
    return received < own ? received : own;
  }
};
struct Max {
  template <typename T>
  T operator()(T own, T received) const {
    return own < received ? received : own;
  }
};
struct And {
  template <typename T>
  T operator()(T own, T received) const {
    return own & received;
  }
};
struct Or {
  template <typename T>
  T operator()(T own, T received) const {
    return own | received;
  }
};
struct Xor {
  template <typename T>
  T operator()(T own, T received) const {
    return own ^ received;
  }
};

// Maps a rank number to 0 .. num_ranks - 1; `rank` may be negative, but above -2 * num_ranks.
int on_ring(int rank, int num_ranks) { return (rank + 2 * num_ranks) % num_ranks; }

// result = own (op) received; `result` may be either operand. Prefetches `next`, the own operand of the next
// call, in the meantime: the ranks' pieces are short and far apart, so the hardware prefetcher cannot predict
// the next one. Prefetching beyond the end of a piece fetches the start of the next tile.
template <typename T, typename Combine>
void combine(const T* own, const T* received, T* result, const T* next, std::int64_t count) {
  constexpr std::int64_t kLine = 64 / sizeof(T), kBlock = 8 * kLine;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const auto end = std::min(begin + kBlock, count);
    for (auto i = begin; i < begin + kBlock; i += kLine) __builtin_prefetch(next + i);
    for (auto i = begin; i < end; ++i) result[i] = Combine{}(own[i], received[i]);
  }
}

struct Tile {
  int chunk = 0;
  std::int64_t begin = 0, end = 0;
};

// Tiles never cross a chunk boundary, because each chunk starts at another rank.
std::vector<Tile> tiles_of(const RingPlan& plan, std::int64_t tile_elements) {
  std::vector<Tile> tiles;
  for (int chunk = 0; chunk < plan.num_ranks; ++chunk) {
    const auto [begin, end] = plan.chunk(chunk);
    for (auto first = begin; first < end; first += tile_elements)
      tiles.push_back({chunk, first, std::min(first + tile_elements, end)});
  }
  return tiles;
}

void for_each_tile(const RingPlan& plan, std::int64_t element_bytes, const ParallelFor& parallel_for,
                   const std::function<void(const Tile&)>& body) {
  const auto tiles = tiles_of(plan, kTileBytes / element_bytes);
  const auto bytes = plan.num_elements * element_bytes * plan.num_ranks;
  // Tiles are independent, so running them in parallel does not change any bit.
  if (bytes < kSerialBytes || tiles.size() < 2) {
    for (const auto& tile : tiles) body(tile);
  } else {
    parallel_for(static_cast<std::int64_t>(tiles.size()), [&](std::int64_t index) { body(tiles[index]); });
  }
}

// `result` is rank chunk - 1's piece at first; each further rank combines its own piece with it, down the ring.
template <typename T, typename Combine>
void all_reduce(const RingPlan& plan, std::span<void* const> buffers, std::span<void* const> results,
                const ParallelFor& parallel_for) {
  const int num_ranks = plan.num_ranks;
  for_each_tile(plan, sizeof(T), parallel_for, [&](const Tile& tile) {
    alignas(64) T result[kTileBytes / sizeof(T)];
    const auto count = tile.end - tile.begin;
    const auto piece = [&](int rank) { return static_cast<T*>(buffers[on_ring(rank, num_ranks)]) + tile.begin; };
    std::memcpy(result, piece(tile.chunk - 1), count * sizeof(T));
    for (int hop = 2; hop <= num_ranks; ++hop) {
      combine<T, Combine>(piece(tile.chunk - hop), result, result, piece(tile.chunk - hop - 1), count);
    }
    for (void* of_rank : results) std::memcpy(static_cast<T*>(of_rank) + tile.begin, result, count * sizeof(T));
  });
}

template <typename T, typename Combine>
void reduce(const RingPlan& plan, std::span<void* const> buffers, int root, const ParallelFor& parallel_for) {
  const int num_ranks = plan.num_ranks;
  for_each_tile(plan, sizeof(T), parallel_for, [&](const Tile& tile) {
    const auto count = tile.end - tile.begin;
    const auto piece = [&](int rank) { return static_cast<T*>(buffers[on_ring(rank, num_ranks)]) + tile.begin; };
    for (int hop = 2; hop <= num_ranks; ++hop) {
      T* own = piece(tile.chunk - hop);
      combine<T, Combine>(own, piece(tile.chunk - hop + 1), own, piece(tile.chunk - hop - 1), count);
    }
    const T* total = piece(tile.chunk);
    // Gloo's loop runs segments_per_chunk - 2 segments too far: the rank before the chunk's owner adds the total to its
    // partial result again. Only ranks other than the root show it, but their tensors must match Gloo's bits too.
    const auto surplus_end =
        std::min(tile.end, plan.chunk(tile.chunk).first + (plan.segments_per_chunk - 2) * plan.segment_elements);
    if (on_ring(tile.chunk - 1, num_ranks) != root) {
      T* own = piece(tile.chunk - 1);
      for (std::int64_t i = 0; i < surplus_end - tile.begin; ++i) own[i] = Combine{}(own[i], total[i]);
    }
    if (tile.chunk != root) std::memcpy(piece(root), total, count * sizeof(T));
  });
}

template <typename T, typename F>
void with_combine(Reduction reduction, F&& f) {
  switch (reduction) {
    case Reduction::kSum: return f.template operator()<T, Sum>();
    case Reduction::kProduct: return f.template operator()<T, Product>();
    case Reduction::kMin: return f.template operator()<T, Min>();
    case Reduction::kMax: return f.template operator()<T, Max>();
    default: break;
  }
  if constexpr (std::is_integral_v<T>) {
    switch (reduction) {
      case Reduction::kBitwiseAnd: return f.template operator()<T, And>();
      case Reduction::kBitwiseOr: return f.template operator()<T, Or>();
      default: return f.template operator()<T, Xor>();
    }
  } else {
    throw ArgumentError("bitwise reductions (band, bor, bxor) require an integer dtype, as in Gloo");
  }
}

template <typename F>
void with_type(c10::ScalarType dtype, Reduction reduction, F&& f) {
  switch (dtype) {
    case c10::ScalarType::Float: return with_combine<float>(reduction, f);
    case c10::ScalarType::Double: return with_combine<double>(reduction, f);
    case c10::ScalarType::Half: return with_combine<c10::Half>(reduction, f);
    case c10::ScalarType::BFloat16: return with_combine<c10::BFloat16>(reduction, f);
    case c10::ScalarType::Char: return with_combine<std::int8_t>(reduction, f);
    case c10::ScalarType::Byte:
    case c10::ScalarType::Bool: return with_combine<std::uint8_t>(reduction, f);
    case c10::ScalarType::Int: return with_combine<std::int32_t>(reduction, f);
    case c10::ScalarType::Long: return with_combine<std::int64_t>(reduction, f);
    default:
      throw ArgumentError(
          fmt::format("dtype {} cannot be reduced; Gloo reduces float32, float64, float16, bfloat16, int8, "
                      "uint8, bool, int32 and int64",
                      c10::toString(dtype)));
  }
}

}  // namespace

void ring_all_reduce(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
                     const ParallelFor& parallel_for) {
  with_type(dtype, reduction,
            [&]<typename T, typename Combine>() { all_reduce<T, Combine>(plan, buffers, buffers, parallel_for); });
}

void ring_sum(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
              void* total, const ParallelFor& parallel_for) {
  void* const results[] = {total};
  with_type(dtype, reduction,
            [&]<typename T, typename Combine>() { all_reduce<T, Combine>(plan, buffers, results, parallel_for); });
}

void ring_reduce(c10::ScalarType dtype, Reduction reduction, const RingPlan& plan, std::span<void* const> buffers,
                 int root, const ParallelFor& parallel_for) {
  with_type(dtype, reduction,
            [&]<typename T, typename Combine>() { reduce<T, Combine>(plan, buffers, root, parallel_for); });
}

}  // namespace accel::sim
