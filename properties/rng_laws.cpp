// Random streams: every rank has its own, `synchronize_rng_states` makes them equal, and both backends agree. On
// simulated ranks all generators live in one process, so a leak between ranks would be invisible in a single-rank
// test.
#include <fmt/format.h>
#include <fmt/ranges.h>

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

// A kind of draw and a number of elements.
using Draw = std::pair<int, std::int64_t>;

Draw any_draw() { return {pick(0, static_cast<int>(random_kinds().size())), pick<std::int64_t>(1, 40)}; }

std::vector<Draw> any_draws() {
  std::vector<Draw> draws;
  for (int count = pick(0, 20); count > 0; --count) draws.push_back(any_draw());
  return draws;
}

// Draws before and after the generators are synchronised.
struct DrawCase {
  int num_ranks = 2;
  std::uint64_t seed = 0;
  std::vector<Draw> before, after;
};

void showValue(const DrawCase& one, std::ostream& out) {
  out << fmt::format("{} ranks, seed {}, draws (kind, size) before {} and after {}", one.num_ranks, one.seed,
                     one.before, one.after);
}

rc::Gen<DrawCase> draw_case() {
  return rc::gen::exec([] {
    DrawCase one{
        .num_ranks = pick(2, 7), .seed = pick<std::uint64_t>(0, 1000), .before = any_draws(), .after = any_draws()};
    for (auto* draws : {&one.before, &one.after}) draws->emplace_back(kind_named("randn_small"), 1);
    // An odd number of normals leaves one over, which the state holds.
    one.after.emplace_back(kind_named("randn_small"), 1);
    return one;
  });
}

// Makes the draws in order; each has a kind and a size.
std::vector<at::Tensor> run_program(const std::vector<Draw>& program) {
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
using Step = std::pair<std::optional<std::uint64_t>, Draw>;

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
    const auto num_ranks = pick<std::size_t>(2, 6), num_steps = pick<std::size_t>(1, 20);
    std::vector<std::vector<Step>> steps(num_ranks, std::vector<Step>(num_steps));
    for (auto& of_rank : steps) {
      for (auto& [seed, draw_of_step] : of_rank) {
        if (one_in(4)) seed = pick<std::uint64_t>(0, 1000);
        draw_of_step = any_draw();
      }
    }
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

// Ranks with different seeds continue with the generators of rank 0, whichever type comes first.
TEST_P(RngLaws, ALoaderSynchronizesAllItsTypes) {
  for (const auto& types : {std::vector<std::string>{"generator", "torch"}, {"torch", "generator"}}) {
    const auto drawn = collect_ranks(GetParam(), 3, [&](RankContext& rank) {
      Accelerator accelerator({.rng_types = types}, rank);
      set_seed(static_cast<std::uint64_t>(40 + rank.rank));
      std::vector<at::Tensor> ids;
      for (auto& [batch] :
           accelerator.prepare(DataLoader(TensorDataset(at::arange(12)), {.batch_size = 2, .shuffle = true})))
        ids.push_back(accelerator.gather(batch));
      EXPECT_TRUE(std::get<0>(at::cat(ids).sort()).equal(at::arange(12))) << "every sample once, so one order";
      return at::rand({4});
    });
    for (int rank = 1; rank < 3; ++rank) EXPECT_TRUE(same_bytes(drawn[0], drawn[rank])) << types.front();
  }
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
