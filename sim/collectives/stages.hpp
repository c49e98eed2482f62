#pragma once

#include "sim/collectives/collective_plan.hpp"

/// The building blocks of collective plans. Thread rule: pure.
namespace accel::sim {

/// The two halves of a ring all-reduce. `chunks[c]` has the bytes and pieces of chunk c, one chunk per rank. Downwards,
/// as in Gloo: rank r sends to r-1 and ends the first half with the sum of chunk r, which it sends first in the second
/// half. Upwards, as in NCCL: the same with r+1.
Stage ring_reduce_scatter(std::vector<Message> chunks, Pairs direction);
Stage ring_all_gather(std::vector<Message> chunks, Pairs direction);

/// A pipeline: slices of a buffer follow each other from rank `first` upwards, over all ranks.
Stage chain(int num_ranks, int first, std::int64_t bytes, bool is_reduced);

/// Binomial trees: rank v = (r - root) mod P < 2^i sends to v xor 2^i in round i; tree_up sends the same messages
/// backwards, in reverse order.
Stage tree_down(int num_ranks, int root, std::int64_t bytes);
Stage tree_up(int num_ranks, int root, std::int64_t bytes);

/// All ranks but the root send at the same time; `parts[r]` has the bytes and pieces of rank r's message.
Stage to_root(std::vector<Message> parts, int root);
Stage from_root(std::vector<Message> parts, int root);

/// Every rank sends `bytes` to every other at the same time (with many ranks: in rounds that fit into memory).
Stage exchange(int num_ranks, std::int64_t bytes);

/// In round i every rank sends an empty message to the rank 2^i after it.
Stage dissemination(int num_ranks);

/// One message from rank 0 to rank 1.
Stage one_message(std::int64_t bytes);

}  // namespace accel::sim
