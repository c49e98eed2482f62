// Random streams: every rank has its own, `synchronize_rng_states` makes them equal, and both backends agree. On
// simulated ranks all generators live in one process, so a leak between ranks would be invisible in a single-rank
// test.
#include <fmt/format.h>

#include "properties/gen/collective_call.hpp"
#include "properties/gen/random_numbers.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::rng_laws {
namespace {

// Draws one of all kinds, so that streams are compared after mixtures of kinds and sizes.
at::Tensor draw(int kind, std::int64_t size) {
  const auto& kinds = random_kinds();
  return kinds[static_cast<std::size_t>(kind) % kinds.size()].draw(size);
}

int kind_named(const std::string& name) {
  const auto& kinds = random_kinds();
  const auto found = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) { return kind.name == name; });
  return static_cast<int>(found - kinds.begin());
}

rc::Gen<std::pair<int, std::int64_t>> any_draw() {
  return rc::gen::pair(rc::gen::inRange(0, static_cast<int>(random_kinds().size())),
                       rc::gen::inRange<std::int64_t>(1, 40));
}

// Draws before and after the generators are synchronised.
struct DrawCase {
  int num_ranks;
  std::uint64_t seed;
  std::vector<std::pair<int, std::int64_t>> before, after;
};

rc::Gen<DrawCase> draw_case() {
  return rc::gen::exec([] {
    const auto program = rc::gen::container<std::vector<std::pair<int, std::int64_t>>>(any_draw());
    DrawCase one;
    one.num_ranks = *rc::gen::inRange(2, 7);
    one.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
    one.before = *program;
    one.after = *program;
    for (auto* draws : {&one.before, &one.after}) draws->emplace_back(kind_named("randn_small"), 1);
    one.after.emplace_back(kind_named("randn_small"),
                           1);  // an odd number of normals leaves one over, which the state holds
    return one;
  });
}

// Makes the draws in order; each has a kind and a size.
std::vector<at::Tensor> run_program(const std::vector<std::pair<int, std::int64_t>>& program) {
  std::vector<at::Tensor> drawn;
  for (const auto& [kind, size] : program) drawn.push_back(draw(kind, size));
  return drawn;
}

bool all_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t item = 0; item < a.size(); ++item) {
    if (!same_bytes(a[item], b[item])) return false;
  }
  return true;
}

class RngLaws : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, RngLaws, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return name_of(info.param); });

// Ranks are threads that share LibTorch's default generator unless it is replaced for each of them.
TEST_P(RngLaws, StreamOfARankEqualsThatOfASeparateProcess) {
  expect_property(20, [] {
    const auto one = *draw_case();
    const auto drawn = collect_ranks(GetParam(), one.num_ranks, [&](RankContext& rank) {
      torch::manual_seed(one.seed + static_cast<std::uint64_t>(rank.rank));
      return run_program(one.after);
    });
    for (int rank = 0; rank < one.num_ranks; ++rank) {
      const auto alone = make_single_rank();
      const RankScope scope(*alone);
      torch::manual_seed(one.seed + static_cast<std::uint64_t>(rank));
      RC_ASSERT(all_same(drawn[rank], run_program(one.after)));
    }
  });
}

// The state of a generator is more than its seed: odd ranks have drawn numbers of all kinds before.
TEST_P(RngLaws, SynchronisationGivesEveryRankTheStreamOfRankZero) {
  expect_property(20, [] {
    const auto one = *draw_case();
    const auto drawn = collect_ranks(GetParam(), one.num_ranks, [&](RankContext& rank) {
      set_seed(one.seed, {.device_specific = true});
      if (rank.rank % 2 == 1) run_program(one.before);  // odd ranks have moved on
      synchronize_rng_states({"torch"});
      return run_program(one.after);
    });
    for (const auto& of_rank : drawn) RC_ASSERT(all_same(of_rank, drawn.front()));
    // A single rank with rank 0's seed is the reference: synchronization must not only agree but give rank 0's
    // stream.
    const auto alone = make_single_rank();
    const RankScope scope(*alone);
    torch::manual_seed(one.seed);
    RC_ASSERT(all_same(drawn.front(), run_program(one.after)));
  });
}

// One step of a rank in a lockstep: a draw, or set_seed.
using Step = std::pair<std::optional<std::uint64_t>, std::pair<int, std::int64_t>>;

std::vector<at::Tensor> run_steps(const std::vector<Step>& steps, const std::function<void()>& meet) {
  std::vector<at::Tensor> drawn;
  set_seed(1);
  for (const auto& [seed, draw_of_step] : steps) {
    meet();
    if (seed) {
      set_seed(*seed);
    } else {
      drawn.push_back(draw(draw_of_step.first, draw_of_step.second));
    }
  }
  return drawn;
}

// `meet` is a barrier, so the steps of all ranks interleave. Without it one rank could finish before the next
// starts.
TEST_P(RngLaws, SeedOrDrawOnOneRankNeverMovesTheStreamOfAnother) {
  expect_property(20, [] {
    const auto num_ranks = *rc::gen::inRange<std::size_t>(2, 6), num_steps = *rc::gen::inRange<std::size_t>(1, 20);
    const auto step = rc::gen::pair(rc::gen::weightedOneOf<std::optional<std::uint64_t>>(
                                        {{3, rc::gen::just(std::optional<std::uint64_t>())},
                                         {1, rc::gen::map(rc::gen::inRange<std::uint64_t>(0, 1000),
                                                          [](auto seed) { return std::optional(seed); })}}),
                                    any_draw());
    const auto steps = *rc::gen::container<std::vector<std::vector<Step>>>(
        num_ranks, rc::gen::container<std::vector<Step>>(num_steps, step));
    const auto together = collect_ranks(GetParam(), static_cast<int>(num_ranks), [&](RankContext& rank) {
      return run_steps(steps[rank.rank], [&] { rank.world.barrier(); });
    });
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      const auto alone = make_single_rank();
      const RankScope scope(*alone);
      RC_ASSERT(all_same(together[rank], run_steps(steps[rank], [] {})));
    }
  });
}

// Guards the tests above: if all streams were equal anyway, they would prove nothing.
TEST_P(RngLaws, WithoutSynchronizationDeviceSpecificSeedsGiveDifferentStreams) {
  const auto drawn = collect_ranks(GetParam(), 4, [&](RankContext&) {
    set_seed(42, {.device_specific = true});
    return at::rand({100});
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_FALSE(same_bytes(drawn[0], drawn[rank]));
}

// The order of data must not come from the default generator, or a rank that draws more (augmentation) would read
// other samples than its peers expect.
TEST_P(RngLaws, ExtraDrawsOnOneRankDoNotChangeTheOrderOfTheData) {
  const auto order_with = [&](int extra_draws) {
    return collect_ranks(GetParam(), 3, [&](RankContext& rank) {
      Accelerator accelerator({}, rank);
      set_seed(9);
      DataLoader loader(TensorDataset(at::arange(20)), {.batch_size = 2, .shuffle = true});
      auto batches = accelerator.prepare(loader);
      std::vector<at::Tensor> ids;
      for (int epoch = 0; epoch < 2; ++epoch) {
        for (auto& [batch] : batches) ids.push_back(batch);
        if (rank.rank == 1) {
          for (int draws = 0; draws < extra_draws; ++draws) draw(draws, 7);
        }
      }
      return at::cat(ids);
    });
  };
  const auto plain = order_with(0), disturbed = order_with(3);
  for (int rank = 0; rank < 3; ++rank) EXPECT_TRUE(same_bytes(plain[rank], disturbed[rank])) << rank;
}

}  // namespace
}  // namespace accel::testing::rng_laws
