// A run that is resumed on another number of ranks or with another number of workers reads every remaining sample
// once.
#include <numeric>

#include "properties/gen/resumed_loaders.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/tree/value.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::elastic_laws {
namespace {

using namespace resumed_loaders;

/// Returns the samples that all ranks read in each step of an epoch, without duplicates, over several lives with
/// different numbers of ranks.
std::vector<std::vector<std::int64_t>> gathered_over_lives(Case c, const std::vector<int>& ranks,
                                                           const std::vector<int>& workers, const std::string& order,
                                                           bool loses_place) {
  std::vector<std::vector<std::int64_t>> steps;
  std::vector<std::string> saved;  // per rank; another number of ranks loads rank 0's state
  for (std::size_t number = 0; number < ranks.size(); ++number) {
    const bool is_last = number + 1 == ranks.size();
    std::vector<std::string> next(ranks[number]);
    run_ranks(Backend::kSim, ranks[number], [&](RankContext& rank) {
      Accelerator accelerator(
          {.dataloader_config = {.split_batches = c.split, .dispatch_batches = c.dispatch, .order = order}}, rank);
      set_seed(7);
      DataLoaderOptions options{.batch_size = c.batch_size,
                                .shuffle = c.source == Source::kShuffled,
                                .num_workers = workers[number % workers.size()]};
      options.sampler = sampler_of(c);
      const auto read = [&](auto loader) {
        if (!saved.empty()) {
          auto state = loader_state_of(unpack<Value>(saved[saved.size() == next.size() ? rank.rank : 0]));
          // The planted bug: the loader restarts its epoch.
          if (loses_place) state.pass.reset();
          loader.load_state_dict(to_value(state));
        }
        auto left = is_last ? std::int64_t{-1} : c.cuts[number];
        const auto save = [&] { next[rank.rank] = pack(loader.state_dict()); };
        if (left == 0) return save();
        for (auto& batch : loader) {
          const auto all = accelerator.gather_for_metrics(std::get<0>(batch));
          if (rank.rank == 0) steps.push_back(ids_of(all));
          if (--left == 0) return save();
        }
      };
      if (c.source == Source::kStream) {
        read(accelerator.prepare(DataLoader(noisy(NumberStream{.length = c.length}), options)));
      } else if (c.source == Source::kParts) {
        read(accelerator.prepare(DataLoader(noisy(parts_of(c)), options)));
      } else {
        read(accelerator.prepare(DataLoader(NoisyDataset{.length = c.length}, options)));
      }
    });
    if (next.front().empty()) break;  // the epoch has ended
    saved = std::move(next);
  }
  return steps;
}

void check_elastic(bool loses_place) {
  Case c;
  c.source = pick_from(
      {Source::kInOrder, Source::kShuffled, Source::kReplacement, Source::kSubset, Source::kWeighted, Source::kStream});
  c.length = pick<std::int64_t>(1, 60);
  c.batch_size = pick<std::int64_t>(1, 4);
  c.dispatch = (pick(0, 2) == 0);
  std::vector<int> ranks, workers;
  for (int life = pick(2, 5); life > 0; --life) {
    ranks.push_back(pick(1, 6));
    workers.push_back(c.source == Source::kStream ? 0 : pick(0, 3));
    c.cuts.push_back(pick<std::int64_t>(0, 4));
  }
  // A single rank draws its order from the default generator in the first pass, so a state saved earlier has no
  // order.
  if (ranks.front() == 1) c.cuts.front() = std::max<std::int64_t>(c.cuts.front(), 1);
  RC_LOG(fmt::format("{}, ranks {}, workers {}", describe(c), ranks, workers));
  std::vector<std::int64_t> seen, expected;
  for (const auto& step : gathered_over_lives(c, ranks, workers, "accelerate", loses_place))
    seen.insert(seen.end(), step.begin(), step.end());
  // The order is that of the first life, whichever ranks continue.
  for (const auto& step : gathered_over_lives(c, {ranks.front()}, {0}, "accelerate", false))
    expected.insert(expected.end(), step.begin(), step.end());
  RC_ASSERT(seen == expected);
}

// A job may get fewer or more machines when it is resumed.
TEST(ElasticLaws, AStateOfSomeRanksIsReadOnByOthersAndEverySampleComesOnce) {
  expect_property(300, [] { check_elastic(false); });
}
TEST(ElasticLaws, ThatLawCatchesAPlaceThatIsLost) {
  expect_property_fails("the place is lost", 100, [] { check_elastic(true); });
}

void check_elastic_order(const std::string& order) {
  Case c;
  c.source = pick_from({Source::kInOrder, Source::kShuffled, Source::kReplacement, Source::kStream, Source::kParts});
  c.length = pick<std::int64_t>(1, 60);
  // 12 has six divisors, so a global batch of 12 divides evenly over all tested numbers of ranks.
  c.batch_size = 12;
  c.dispatch = (pick(0, 2) == 0);
  const std::vector<int> divisors{1, 2, 3, 4, 6, 12};
  const auto any = [&] { return divisors[pick<std::size_t>(0, divisors.size())]; };
  const std::vector<int> ranks{any(), any(), any()},
      workers{0, c.source == Source::kStream || c.source == Source::kParts ? 0 : 2};
  c.cuts = {pick<std::int64_t>(0, 3), pick<std::int64_t>(0, 3), 0};
  RC_LOG(fmt::format("{}, ranks {}", describe(c), ranks));
  RC_ASSERT(gathered_over_lives(c, ranks, workers, order, false) == gathered_over_lives(c, {1}, {0}, order, false));
}

// Then losses can be compared before and after the change.
TEST(ElasticLaws, AnElasticOrdersStepsDoNotDependOnTheNumberOfRanks) {
  expect_property(200, [] { check_elastic_order("elastic"); });
}
// Accelerate's own order reads ranks x batch_size samples per step, so the steps change with the number of ranks.
TEST(ElasticLaws, ThatLawCatchesStepsThatGrowWithTheRanks) {
  expect_property_fails("accelerate's order", 100, [] { check_elastic_order("accelerate"); });
}

// Five samples in steps of four leave a last step with one sample. Its padding must not depend on the number of
// ranks.
TEST(ElasticLaws, TheLastStepOfAnElasticOrderIsTheSameForOneRank) {
  const auto sum_of_rows = [](int ranks, bool dispatch) {
    std::vector<std::int64_t> rows(ranks);
    run_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = dispatch, .order = "elastic"}}, rank);
      set_seed(3);
      for (auto& [ids] :
           accelerator.prepare(DataLoader(TensorDataset(at::arange(5)), {.batch_size = 4, .shuffle = true})))
        // ids^2 + 1 makes the sum depend on which samples were read and how often, also for sample 0.
        rows[rank.rank] += (ids * ids + 1).sum().item<std::int64_t>();
    });
    return std::accumulate(rows.begin(), rows.end(), std::int64_t{0});
  };
  for (const bool dispatch : {false, true}) {
    EXPECT_EQ(sum_of_rows(1, false), sum_of_rows(2, dispatch));
    EXPECT_EQ(sum_of_rows(1, false), sum_of_rows(4, dispatch));
    EXPECT_EQ(sum_of_rows(1, false), sum_of_rows(1, dispatch));
  }
}

}  // namespace
}  // namespace accel::testing::elastic_laws
