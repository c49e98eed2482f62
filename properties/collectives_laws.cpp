// The simulator's collectives give the bytes of real Gloo, for every operation, dtype, size and number of ranks.
// This is what makes a simulated training comparable to a real one bit by bit: the order of sums must be that of
// Gloo's ring.
#include <fmt/format.h>
#include <rapidcheck.h>

#include "properties/gen/collective_call.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::collectives_laws {
namespace {

using Calls = std::vector<CollectiveCall>;
using Outputs = std::vector<std::vector<at::Tensor>>;  // by call

// The outputs of each rank.
std::vector<Outputs> run(Backend backend, int num_ranks, const Calls& calls) {
  return collect_ranks(backend, num_ranks, [&](RankContext& rank) {
    Outputs outputs;
    for (const auto& call : calls) outputs.push_back(perform(call, rank));
    return outputs;
  });
}

// Returns a description of the first call whose bytes differ on some rank, or "".
std::string first_difference(int num_ranks, const Calls& calls) {
  // Gloo runs among threads of this process and real sockets, so both sides perform the same calls on the same
  // inputs.
  const auto sim = run(Backend::kSim, num_ranks, calls);
  const auto gloo = run(Backend::kGlooThreads, num_ranks, calls);
  for (std::size_t call = 0; call < calls.size(); ++call) {
    for (int rank = 0; rank < num_ranks; ++rank) {
      const auto& a = sim[rank][call];
      const auto& b = gloo[rank][call];
      for (std::size_t item = 0; item < std::max(a.size(), b.size()); ++item) {
        if (a.size() != b.size() || !same_bytes(a[item], b[item])) {
          return fmt::format("P = {}, rank {}, tensor {}: {}", num_ranks, rank, item, describe(calls[call]));
        }
      }
    }
  }
  return "";
}

Calls draw_calls(int count, int num_ranks, std::int64_t max_numel) {
  Calls calls;
  for (int i = 0; i < count; ++i) calls.push_back(*collective_call(num_ranks, max_numel));
  return calls;
}

void expect_bytes_of_gloo(int num_ranks, const Calls& calls) {
  const auto difference = first_difference(num_ranks, calls);
  RC_LOG(difference);
  RC_ASSERT(difference.empty());
}

// What a user tests on simulated ranks has to be true on real ones, down to the rounding.
TEST(CollectiveLaws, SimulatorGivesTheBytesOfGloo) {
  // 100 groups of 2 to 8 ranks with 20 calls each.
  constexpr int kCallsPerGroup = 20;
  expect_property(100, [] {
    const int num_ranks = pick(2, 9);
    expect_bytes_of_gloo(num_ranks, draw_calls(kCallsPerGroup, num_ranks, 60000));
  });
}

TEST(CollectiveLaws, SimulatorGivesTheBytesOfGlooAt64Ranks) {
  // Gloo connects each rank with every other one, so one group serves one call of every operation and nine more.
  // 2,000 elements give chunks of different lengths on 64 ranks.
  expect_property(1, [] {
    auto calls = draw_calls(static_cast<int>(Op::kCount) + 9, 64, 2000);
    for (int op = 0; op < static_cast<int>(Op::kCount); ++op) calls[op].op = static_cast<Op>(op);
    expect_bytes_of_gloo(64, calls);
  });
}

TEST(CollectiveLaws, LargeBuffersHaveMoreThanTwoSegmentsPerChunk) {
  // Above 2 P MiB Gloo cuts chunks into more segments, and its reduce also writes beyond the result on the ranks
  // that are not the root. The simulator copies both.
  for (const auto op : {Op::kAllReduce, Op::kReduce}) {
    const CollectiveCall call{.op = op, .numel = 5'000'001, .root = 1, .seed = 3};
    EXPECT_EQ(first_difference(3, {call}), "");
  }
}

}  // namespace
}  // namespace accel::testing::collectives_laws
