// Plans of the collectives, as Gloo and NCCL carry them out, built from the stages in stages.hpp. The network
// model prices the messages; the fault injector asks which links a collective uses. Nothing here moves tensors:
// the results come from collectives/tensors.
#include "sim/collectives/collective_plan.hpp"

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"
#include "sim/collectives/ring_plan.hpp"
#include "sim/collectives/stages.hpp"

namespace accel::sim {
namespace {

// Chunks at the end of a short buffer are empty. They keep their place with 0 pieces, so that round and rank
// still determine the chunk.
std::vector<Message> chunks_of(const RingPlan& plan, std::int64_t element_bytes) {
  std::vector<Message> chunks(plan.num_ranks, {.pieces = 0});
  for (int chunk = 0; chunk < plan.num_ranks; ++chunk) {
    const auto [begin, end] = plan.chunk(chunk);
    if (end == begin) continue;
    chunks[chunk] = {.bytes = (end - begin) * element_bytes,
                     .pieces = static_cast<int>(divide_up(end - begin, plan.segment_elements))};
  }
  return chunks;
}

std::vector<Message> parts_of(const CollectiveCall& call, std::int64_t bytes, int pieces) {
  return std::vector<Message>(call.num_ranks, {.bytes = bytes, .pieces = bytes > 0 ? pieces : 0});
}

std::int64_t num_elements(const CollectiveCall& call) { return divide_up(call.bytes, call.element_bytes); }

struct Ring {
  std::vector<Message> chunks;
  Pairs direction;
};

// Gloo cuts chunks into segments that it pipelines; NCCL's chunks are equal shares in one piece.
Ring ring_of(const CollectiveCall& call, Library library) {
  if (library == Library::kGloo) {
    return {chunks_of(plan_all_reduce(num_elements(call), call.element_bytes, call.num_ranks), call.element_bytes),
            Pairs::kRingDown};
  }
  const RingPlan even{.num_ranks = call.num_ranks,
                      .num_elements = num_elements(call),
                      .segment_elements = divide_up(num_elements(call), call.num_ranks),
                      .segments_per_chunk = 1};
  return {chunks_of(even, call.element_bytes), Pairs::kRingUp};
}

CollectivePlan ring_all_reduce(const CollectiveCall& call, Library library) {
  const auto [chunks, direction] = ring_of(call, library);
  return {{ring_reduce_scatter(chunks, direction), ring_all_gather(chunks, direction)}};
}

CollectivePlan all_reduce(const CollectiveCall& call, Library library, std::int64_t tree_bytes_max) {
  if (call.bytes > tree_bytes_max) return ring_all_reduce(call, library);
  return {{tree_up(call.num_ranks, /*root=*/0, call.bytes), tree_down(call.num_ranks, /*root=*/0, call.bytes)}};
}

// Gloo has no reduce-scatter: PyTorch all-reduces everything and keeps one part.
CollectivePlan reduce_scatter(const CollectiveCall& call, Library library) {
  if (library == Library::kGloo) return ring_all_reduce(call, library);
  const auto [chunks, direction] = ring_of(call, library);
  return {{ring_reduce_scatter(chunks, direction)}};
}

// PyTorch's Gloo all-reduces each tensor of the list separately.
CollectivePlan reduce_scatter_list(const CollectiveCall& call, Library library) {
  if (library == Library::kNccl) return reduce_scatter(call, library);
  auto one = call;
  one.bytes = divide_up(call.bytes, call.num_ranks);
  auto plan = ring_all_reduce(one, library);
  plan.repeats = call.num_ranks;
  return plan;
}

// Gloo's all-gather sends each part in two halves, so that receiving and forwarding overlap.
CollectivePlan all_gather(const CollectiveCall& call, Library library) {
  return {{ring_all_gather(parts_of(call, call.bytes, /*pieces=*/library == Library::kGloo ? 2 : 1), Pairs::kRingUp)}};
}

// NCCL pipelines slices along a chain, which keeps every link busy for large buffers; Gloo uses a tree.
CollectivePlan broadcast(const CollectiveCall& call, Library library) {
  if (library == Library::kNccl) return {{chain(call.num_ranks, call.root, call.bytes, /*is_reduced=*/false)}};
  return {{tree_down(call.num_ranks, call.root, call.bytes)}};
}

CollectivePlan reduce(const CollectiveCall& call, Library library) {
  if (library == Library::kNccl) {
    return {{chain(call.num_ranks, (call.root + 1) % call.num_ranks, call.bytes, /*is_reduced=*/true)}};
  }
  const auto chunks =
      chunks_of(plan_reduce(num_elements(call), call.element_bytes, call.num_ranks), call.element_bytes);
  auto to_the_root = chunks;
  for (auto& chunk : to_the_root) chunk.pieces = std::min(chunk.pieces, 1);  // each rank sends its chunk as one message
  // After the first half every rank has the sum of one chunk and sends it to the root.
  return {{ring_reduce_scatter(chunks, Pairs::kRingDown), to_root(to_the_root, call.root)}};
}

CollectivePlan gather(const CollectiveCall& call) { return {{to_root(parts_of(call, call.bytes, 1), call.root)}}; }
CollectivePlan scatter(const CollectiveCall& call) { return {{from_root(parts_of(call, call.bytes, 1), call.root)}}; }
CollectivePlan all_to_all(const CollectiveCall& call) {
  return {{exchange(call.num_ranks, divide_up(call.bytes, call.num_ranks))}};
}
CollectivePlan message(const CollectiveCall& call) { return {{one_message(call.bytes)}}; }

// PyTorch's NCCL backend implements the barrier as an all-reduce of one number.
CollectivePlan barrier(const CollectiveCall& call, Library library) {
  if (library == Library::kGloo) return {{dissemination(call.num_ranks)}};
  return ring_all_reduce({.op = call.op, .bytes = 4, .num_ranks = call.num_ranks}, library);
}

// Every rank reports to rank 0, which answers when all have: rank 0 can then name the missing ranks.
CollectivePlan monitored_barrier(const CollectiveCall& call) {
  const std::vector<Message> empty(call.num_ranks);
  return {{to_root(empty, /*root=*/0), from_root(empty, /*root=*/0)}};
}

CollectivePlan plan_of(const CollectiveCall& call, Library library, std::int64_t tree_bytes_max) {
  switch (info_of(call.op).algorithm) {
    case Algorithm::kAllReduce: return all_reduce(call, library, tree_bytes_max);
    case Algorithm::kBroadcast: return broadcast(call, library);
    case Algorithm::kReduce: return reduce(call, library);
    case Algorithm::kAllGather: return all_gather(call, library);
    case Algorithm::kGather: return gather(call);
    case Algorithm::kScatter: return scatter(call);
    case Algorithm::kReduceScatterList: return reduce_scatter_list(call, library);
    case Algorithm::kReduceScatter: return reduce_scatter(call, library);
    case Algorithm::kAllToAll: return all_to_all(call);
    case Algorithm::kBarrier: return barrier(call, library);
    case Algorithm::kMonitoredBarrier: return monitored_barrier(call);
    case Algorithm::kMessage: return message(call);
  }
  throw InternalError("unknown algorithm of a collective");
}

void check(const CollectiveCall& call) {
  const auto& info = info_of(call.op);
  check_argument(call.num_ranks >= 1 && call.bytes >= 0 && call.element_bytes >= 1,
                 "{}: got {} bytes in elements of {} bytes on {} ranks; expected at least 0, 1 and 1", info.name,
                 call.bytes, call.element_bytes, call.num_ranks);
  check_argument(!info.traits.has_root || (call.root >= 0 && call.root < call.num_ranks),
                 "{}: root {} is not in the group of {} ranks; expected 0 or more and less than {}", info.name,
                 call.root, call.num_ranks, call.num_ranks);
  check_argument(info.algorithm != Algorithm::kMessage || call.num_ranks == 2,
                 "{}: got {} ranks; expected two, the sender and the receiver", info.name, call.num_ranks);
}

}  // namespace

CollectivePlan plan_collective(const CollectiveCall& call, Library library, std::int64_t tree_all_reduce_bytes_max) {
  check(call);
  return call.num_ranks == 1 ? CollectivePlan{} : plan_of(call, library, tree_all_reduce_bytes_max);
}

// Plans one byte: the links do not depend on the size, and a plan of one byte is cheap at any number of ranks.
void for_each_link(Collective op, int num_ranks, int root, const std::function<void(int from, int to)>& visit) {
  const auto plan =
      plan_collective({.op = op, .bytes = 1, .element_bytes = 1, .num_ranks = num_ranks, .root = root}, Library::kGloo);
  std::vector<Message> messages;
  for (const auto& stage : plan.stages) {
    int pattern = -1;
    for (int round = 0; round < stage.num_rounds; ++round) {
      if (stage.pattern(round) == pattern) continue;  // same pairs as in the round before
      pattern = stage.pattern(round);
      stage.messages(round, messages);
      for (const auto& message : messages) visit(message.from, message.to);
    }
  }
}

}  // namespace accel::sim
