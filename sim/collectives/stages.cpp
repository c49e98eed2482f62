// Each stage produces its messages round by round on demand: a ring of 4,096 ranks has 33 million messages, too
// many to store. `messages` reuses the caller's vector for the same reason.
#include "sim/collectives/stages.hpp"

#include <bit>

#include "reference/core/integers.hpp"

namespace accel::sim {
namespace {

// Bounds the memory of one round of an all-to-all: 4,096 ranks exchange 16 million messages.
constexpr std::int64_t kExchangeMessagesMax = 1 << 18;
constexpr std::int64_t kChainSliceBytes = 512 << 10;  // NCCL's buffer of 4 MiB has 8 steps

int modulo(int value, int divisor) { return (value % divisor + divisor) % divisor; }
// The smallest k with 2^k >= num_ranks.
int tree_rounds(int num_ranks) { return std::bit_width(static_cast<unsigned>(num_ranks - 1)); }
int pieces_of(std::int64_t bytes) { return bytes > 0 ? 1 : 0; }

// In round t, rank r sends chunk r + offset + t to the rank below, or chunk r - offset - t to the rank above.
// The chunk is computed once per round and then incremented: a modulo per message dominated the time of large rings.
Stage ring(std::vector<Message> chunks, Pairs direction, int offset, bool is_reduced) {
  const auto ranks = static_cast<int>(chunks.size());
  const int step = direction == Pairs::kRingDown ? 1 : -1;
  return {.pairs = direction,
          .num_rounds = ranks - 1,
          .messages = [=, chunks = std::move(chunks)](int round, std::vector<Message>& messages) {
            messages.resize(ranks);
            int chunk = modulo(step * (offset + round), ranks);
            for (int rank = 0; rank < ranks; ++rank) {
              const int to = rank - step;
              messages[rank] = {.from = rank,
                                .to = to < 0        ? ranks - 1
                                      : to == ranks ? 0
                                                    : to,
                                .bytes = chunks[chunk].bytes,
                                .pieces = chunks[chunk].pieces,
                                .is_reduced = is_reduced};
              if (++chunk == ranks) chunk = 0;
            }
          }};
}

}  // namespace

Stage ring_reduce_scatter(std::vector<Message> chunks, Pairs direction) {
  return ring(std::move(chunks), direction, /*offset=*/1, /*is_reduced=*/true);
}

Stage ring_all_gather(std::vector<Message> chunks, Pairs direction) {
  return ring(std::move(chunks), direction, /*offset=*/0, /*is_reduced=*/false);
}

// In round t the rank at position p sends slice t - p. Positions without a slice to send keep an empty message.
Stage chain(int num_ranks, int first, std::int64_t bytes, bool is_reduced) {
  const auto num_slices = static_cast<int>(divide_up(bytes, kChainSliceBytes));
  return {.pairs = Pairs::kChain,
          .root = first,
          .num_rounds = num_slices == 0 ? 0 : num_slices + num_ranks - 2,
          .messages = [=](int round, std::vector<Message>& messages) {
            messages.resize(num_ranks - 1);
            for (int place = 0; place + 1 < num_ranks; ++place) {
              const int slice = round - place;
              const bool is_sent = slice >= 0 && slice < num_slices;
              messages[place] = {.from = (first + place) % num_ranks,
                                 .to = (first + place + 1) % num_ranks,
                                 .bytes = is_sent ? std::min(kChainSliceBytes, bytes - slice * kChainSliceBytes) : 0,
                                 .pieces = is_sent ? 1 : 0,
                                 .is_reduced = is_reduced};
            }
          }};
}

// Ranks are numbered relative to the root, so that the root is the tree's rank 0.
Stage tree_down(int num_ranks, int root, std::int64_t bytes) {
  return {.pairs = Pairs::kTreeDown,
          .root = root,
          .num_rounds = tree_rounds(num_ranks),
          .messages = [=](int round, std::vector<Message>& messages) {
            messages.clear();
            const int distance = 1 << round;
            for (int rank = 0; rank < distance && rank + distance < num_ranks; ++rank) {
              messages.push_back({.from = (rank + root) % num_ranks,
                                  .to = (rank + distance + root) % num_ranks,
                                  .bytes = bytes,
                                  .pieces = pieces_of(bytes)});
            }
          }};
}

// The same messages as downwards, in reverse order and direction, and added by the receiver.
Stage tree_up(int num_ranks, int root, std::int64_t bytes) {
  const auto down = tree_down(num_ranks, root, bytes);
  return {.pairs = Pairs::kTreeUp,
          .root = root,
          .num_rounds = down.num_rounds,
          .messages = [down](int round, std::vector<Message>& messages) {
            down.messages(down.num_rounds - 1 - round, messages);
            for (auto& message : messages) {
              std::swap(message.from, message.to);
              message.is_reduced = true;
            }
          }};
}

Stage to_root(std::vector<Message> parts, int root) {
  return {
      .pairs = Pairs::kToRoot,
      .root = root,
      .messages = [root, parts = std::move(parts)](int /*round*/, std::vector<Message>& messages) {
        messages.clear();
        for (int rank = 0; rank < static_cast<int>(parts.size()); ++rank) {
          if (rank != root) {
            messages.push_back({.from = rank, .to = root, .bytes = parts[rank].bytes, .pieces = parts[rank].pieces});
          }
        }
      }};
}

// A scatter is a gather with senders and receivers exchanged.
Stage from_root(std::vector<Message> parts, int root) {
  const auto gather = to_root(std::move(parts), root);
  return {.pairs = Pairs::kFromRoot, .root = root, .messages = [gather](int round, std::vector<Message>& messages) {
            gather.messages(round, messages);
            for (auto& message : messages) std::swap(message.from, message.to);
          }};
}

// Rank r sends to r + 1, r + 2, ...; the shifts of one round are in flight together.
Stage exchange(int num_ranks, std::int64_t bytes) {
  const auto shifts = static_cast<int>(std::max<std::int64_t>(1, kExchangeMessagesMax / num_ranks));
  return {.pairs = Pairs::kExchange,
          .num_rounds = static_cast<int>(divide_up(num_ranks - 1, shifts)),
          .messages = [=](int round, std::vector<Message>& messages) {
            messages.clear();
            for (int shift = 1 + round * shifts; shift < num_ranks && shift < 1 + (round + 1) * shifts; ++shift) {
              for (int rank = 0; rank < num_ranks; ++rank) {
                messages.push_back(
                    {.from = rank, .to = (rank + shift) % num_ranks, .bytes = bytes, .pieces = pieces_of(bytes)});
              }
            }
          }};
}

Stage dissemination(int num_ranks) {
  return {.pairs = Pairs::kDissemination,
          .num_rounds = tree_rounds(num_ranks),
          .messages = [=](int round, std::vector<Message>& messages) {
            messages.clear();
            for (int rank = 0; rank < num_ranks; ++rank) {
              messages.push_back({.from = rank, .to = (rank + (1 << round)) % num_ranks});
            }
          }};
}

Stage one_message(std::int64_t bytes) { return from_root({{}, {.bytes = bytes}}, /*root=*/0); }

}  // namespace accel::sim
