// Gloo over shared memory (this library's transport) gives the bytes of Gloo over TCP. The transport cuts messages
// into pieces of a ring buffer, so sizes around and beyond the buffer matter.
#include <fmt/format.h>
#include <rapidcheck.h>

#include "properties/gen/collective_call.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::transport_laws {
namespace {

using Outputs = std::vector<std::vector<at::Tensor>>;  // by call

/// Every second call is made by a separate group, which leaves out rank 0 if two ranks remain. Groups have their
/// own buffers, and mixing them up would deliver another group's bytes.
std::vector<Outputs> run_in_groups(Backend backend, int num_ranks, const std::vector<CollectiveCall>& calls) {
  return collect_ranks(backend, num_ranks, [&](RankContext& rank) {
    const int first = num_ranks > 2 ? 1 : 0;
    std::vector<int> members(num_ranks - first);
    std::iota(members.begin(), members.end(), first);
    RankContext inner;
    inner.rank = rank.rank - first;
    inner.world_size = num_ranks - first;
    inner.world = rank.new_group(members);
    Outputs outputs;
    for (std::size_t call = 0; call < calls.size(); ++call) {
      const bool is_inner = call % 2 == 1;
      if (is_inner && inner.rank < 0) continue;
      auto of_call = calls[call];
      if (is_inner) of_call.root %= inner.world_size;
      outputs.push_back(perform(of_call, is_inner ? inner : rank));
    }
    // A member must not destroy the group while others still read from its memory.
    if (inner.rank >= 0) inner.world.barrier();
    return outputs;
  });
}

TEST(TransportLaws, SharedMemoryGivesTheBytesOfTcp) {
  expect_property(25, [] {
    const int num_ranks = pick(2, 6);
    std::vector<CollectiveCall> calls;
    for (int i = 0; i < 12; ++i) {
      auto call = *collective_call(num_ranks, 60000);
      if (pick(0, 6) == 0)
        call.numel = pick<std::int64_t>(100'000, 900'000);  // larger than one piece, and larger than the ring buffer
      if (pick(0, 20) == 0) call.numel = 0;
      calls.push_back(call);
    }
    const auto tcp = run_in_groups(Backend::kGlooTcpThreads, num_ranks, calls);
    const auto shared = run_in_groups(Backend::kGlooSharedMemoryThreads, num_ranks, calls);
    for (int rank = 0; rank < num_ranks; ++rank) {
      RC_ASSERT(tcp[rank].size() == shared[rank].size());
      for (std::size_t call = 0; call < tcp[rank].size(); ++call) {
        const auto& a = tcp[rank][call];
        const auto& b = shared[rank][call];
        RC_ASSERT(a.size() == b.size());
        for (std::size_t item = 0; item < a.size(); ++item) {
          const bool is_same = same_bytes(a[item], b[item]);
          if (!is_same) RC_LOG(fmt::format("P = {}, rank {}, output {}, tensor {}", num_ranks, rank, call, item));
          RC_ASSERT(is_same);
        }
      }
    }
  });
}

}  // namespace
}  // namespace accel::testing::transport_laws
