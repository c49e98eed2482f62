// Random streams: every rank has its own, `synchronize_rng_states` makes them one, and both backends agree.
#include <fmt/format.h>

#include "properties/gen/collective_call.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing {
namespace {

// A program of draws, so that streams are compared after mixtures of kinds and sizes.
at::Tensor draw(int kind, std::int64_t size) {
  switch (kind % 5) {
    case 0: return at::randn({size});
    case 1: return at::rand({size});
    case 2: return at::randperm(size, at::kLong).to(at::kFloat);
    case 3: return at::dropout(at::ones({size}), 0.5, /*train=*/true);
    default: return at::randint(0, 1000, {size}, at::kLong).to(at::kFloat);
  }
}

struct DrawCase {
  int num_ranks;
  std::uint64_t seed;
  std::vector<std::pair<int, std::int64_t>> before, after;
};

rc::Gen<DrawCase> draw_case() {
  return rc::gen::exec([] {
    const auto program = rc::gen::container<std::vector<std::pair<int, std::int64_t>>>(
        rc::gen::pair(rc::gen::inRange(0, 5), rc::gen::inRange<std::int64_t>(1, 40)));
    DrawCase one;
    one.num_ranks = *rc::gen::inRange(2, 7);
    one.seed = *rc::gen::inRange<std::uint64_t>(0, 1000);
    one.before = *program;
    one.after = *program;
    one.after.emplace_back(0, 17);  // an odd number of normals: the cached one travels with the state
    return one;
  });
}

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
INSTANTIATE_TEST_SUITE_P(Backends, RngLaws, ::testing::Values(Backend::kSim, Backend::kGlooThreads), [](const auto& info) { return name_of(info.param); });

TEST_P(RngLaws, StreamOfARankIsThatOfAProcessOfItsOwn) {
  expect_property(20, [this] {
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

TEST_P(RngLaws, SynchronisationGivesEveryRankTheStreamOfRankZero) {
  expect_property(20, [this] {
    const auto one = *draw_case();
    const auto drawn = collect_ranks(GetParam(), one.num_ranks, [&](RankContext& rank) {
      set_seed(one.seed, {.device_specific = true});
      if (rank.rank % 2 == 1) run_program(one.before);  // ranks have gone apart
      synchronize_rng_states({"torch"});
      return run_program(one.after);
    });
    for (const auto& of_rank : drawn) RC_ASSERT(all_same(of_rank, drawn.front()));
    const auto alone = make_single_rank();
    const RankScope scope(*alone);
    torch::manual_seed(one.seed);
    RC_ASSERT(all_same(drawn.front(), run_program(one.after)));
  });
}

TEST_P(RngLaws, WithoutSynchronisationDeviceSpecificSeedsGiveDifferentStreams) {
  const auto drawn = collect_ranks(GetParam(), 4, [&](RankContext&) {
    set_seed(42, {.device_specific = true});
    return draw(0, 100);
  });
  for (int rank = 1; rank < 4; ++rank) EXPECT_FALSE(same_bytes(drawn[0], drawn[rank]));
}

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
}  // namespace accel::testing
