// Streams of several parts: every rank and worker reads its own parts, all ranks take the same number of steps, and
// metrics hold every sample once. Parts have different lengths, so ranks run out at different times.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "properties/gen/data_sources.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/data/transformed.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::stream_laws {
namespace {

// A stream of parts with these lengths, and a loader for it.
struct Case {
  std::vector<std::int64_t> lengths;
  int ranks = 1, workers = 0;
  std::int64_t batch_size = 1;
  bool drop_last = false;
  std::optional<bool> dispatch;
};

// What a rank saw in an epoch.
struct Outcome {
  std::vector<std::int64_t> gathered;
  std::int64_t steps = 0, num_ends = 0, read = 0, largest_batch = 0;
};

std::vector<Outcome> read(Backend backend, const Case& c) {
  std::vector<std::atomic<std::int64_t>> num_read(c.ranks);
  auto outcomes = collect_ranks(backend, c.ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = c.dispatch}}, rank);
    // Counts what is read from the source, which reveals a rank that reads parts of others and throws them away.
    const auto counted = [counter = &num_read[rank.rank]](std::int64_t number) {
      ++*counter;
      return number;
    };
    auto loader = accelerator.prepare(
        DataLoader(transformed(Parts::of(c.lengths), counted),
                   {.batch_size = c.batch_size, .drop_last = c.drop_last, .num_workers = c.workers}));
    Outcome outcome;
    for (auto& ids : loader) {
      ++outcome.steps;
      outcome.largest_batch = std::max(outcome.largest_batch, ids.size(0));
      outcome.num_ends += accelerator.gradient_state().end_of_dataloader() ? 1 : 0;
      const auto all = accelerator.gather_for_metrics(ids);
      for (const auto number : ids_of(all)) outcome.gathered.push_back(number);
    }
    return outcome;
  });
  for (int rank = 0; rank < c.ranks; ++rank) outcomes[rank].read = num_read[rank];
  return outcomes;
}

Case make_case(int max_ranks) {
  Case c;
  c.ranks = pick(1, max_ranks + 1);
  c.workers = pick(0, 4);
  c.batch_size = pick<std::int64_t>(1, 5);
  c.drop_last = pick(0, 3) == 0;
  if ((pick(0, 2) == 0)) c.dispatch = (pick(0, 2) == 0);
  const auto num_parts = pick(c.ranks, 3 * c.ranks + 3);
  // The first `ranks` parts are not empty, because a rank without any sample is an error (see below).
  for (int part = 0; part < num_parts; ++part) c.lengths.push_back(pick<std::int64_t>(part < c.ranks ? 1 : 0, 9));
  return c;
}

void check_case(Backend backend, const Case& c) {
  RC_LOG(fmt::format("parts {}, ranks {}, workers {}, batch {}, drop_last {}, dispatch {}", c.lengths, c.ranks,
                     c.workers, c.batch_size, c.drop_last, c.dispatch ? (*c.dispatch ? "true" : "false") : "null"));
  const auto total = std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
  const auto outcomes = read(backend, c);
  for (const auto& outcome : outcomes) {
    RC_ASSERT(outcome.steps == outcomes[0].steps);
    RC_ASSERT(outcome.largest_batch <= c.batch_size);
    RC_ASSERT(outcome.num_ends == (outcome.steps > 0 ? 1 : 0));
    auto gathered = outcome.gathered;
    RC_ASSERT(gathered == outcomes[0].gathered);
    std::sort(gathered.begin(), gathered.end());
    RC_ASSERT(std::adjacent_find(gathered.begin(), gathered.end()) == gathered.end());
    if (!c.drop_last) RC_ASSERT(static_cast<std::int64_t>(gathered.size()) == total);
  }
  // No rank reads another rank's samples. Over all ranks each sample is read at most once; samples that a rank has
  // not reached when the epoch ends early are not read.
  const auto num_read = std::accumulate(outcomes.begin(), outcomes.end(), std::int64_t{0},
                                        [](auto sum, const auto& outcome) { return sum + outcome.read; });
  RC_ASSERT(num_read <= total);
}

// Parts are of any length, also empty, so ranks and workers run out of data at different times.
TEST(StreamLaws, PartsAreReadOnceAndMetricsHoldEverySampleOnce) {
  expect_property(250, [] { check_case(Backend::kSim, make_case(5)); });
}

TEST(StreamLaws, TheSameOnGloo) {
  expect_property(25, [] { check_case(Backend::kGlooThreads, make_case(3)); });
}

// How many batches a rank has read does not tell how far each of its parts was read. With and without even_batches,
// whose duplicates come from the start of the pass.
TEST(StreamLaws, SkippedBatchesAreThoseThatThePassWouldHaveBegunWith) {
  expect_property(40, [] {
    auto c = make_case(4);
    const bool even = pick(0, 2) == 0;
    const int num_skipped = pick(0, 6);
    RC_LOG(fmt::format("parts {}, ranks {}, workers {}, batch {}, drop_last {}, even {}, skipped {}", c.lengths,
                       c.ranks, c.workers, c.batch_size, c.drop_last, even, num_skipped));
    collect_ranks(Backend::kSim, c.ranks, [&](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = c.dispatch, .even_batches = even}}, rank);
      const auto read_from = [&](int first) {
        auto loader = accelerator.prepare(DataLoader(
            Parts::of(c.lengths), {.batch_size = c.batch_size, .drop_last = c.drop_last, .num_workers = c.workers}));
        std::vector<std::vector<std::int64_t>> batches;
        auto rest = skip_first_batches(loader, first);
        for (auto& ids : rest) batches.push_back(ids_of(ids));
        return batches;
      };
      auto whole = read_from(0);
      const auto skipped = std::min<std::size_t>(whole.size(), static_cast<std::size_t>(num_skipped));
      whole.erase(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(skipped));
      const auto rest = read_from(num_skipped);
      if (rest != whole) throw Error(fmt::format("rank {}: {}, expected {}", rank.rank, rest, whole));
      return 0;
    });
  });
}

// Accelerate and torch drop the short tail of every worker.
TEST(StreamLaws, DropLastDropsLessThanOneStepWhateverTheNumberOfWorkers) {
  expect_property(150, [] {
    // Dispatching makes the number of dropped samples exact: rank 0 forms the batches of all ranks.
    auto c = make_case(4);
    c.drop_last = true;
    c.dispatch = true;
    check_case(Backend::kSim, c);
    const auto total = std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
    RC_ASSERT(total - static_cast<std::int64_t>(read(Backend::kSim, c)[0].gathered.size()) < c.batch_size * c.ranks);
  });
}

// Only rank 1 notices that its part is empty. The others would wait for its batches.
TEST(ShardedStreamTest, ARankWithoutASampleIsAnErrorOnEveryRank) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      auto loader = accelerator.prepare(DataLoader(Parts::of({2, 0, 2}), {.batch_size = 2}));
      try {
        for ([[maybe_unused]] auto& batch : loader) {
        }
        ADD_FAILURE() << "rank " << rank.rank << " read to the end";
      } catch (const ArgumentError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 of 3 contain no samples"));
      }
    });
  }
}

// The error occurs in the middle of an epoch on one rank, in a part that only this rank reads.
TEST(ShardedStreamTest, AReadErrorOfOneRankReachesEveryRank) {
  const auto read_number = [](std::int64_t number) {
    check_state(number != 5, "part 1 is damaged");
    return number;
  };
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 2, [read_number](RankContext& rank) {
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      auto loader = accelerator.prepare(DataLoader(transformed(Parts::of({4, 4}), read_number), {.batch_size = 1}));
      try {
        for ([[maybe_unused]] auto& batch : loader) {
        }
        ADD_FAILURE() << "rank " << rank.rank << " read to the end";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(rank.rank == 1 ? "part 1 is damaged" : "rank 1 failed to read"));
      }
    });
  }
}

}  // namespace
}  // namespace accel::testing::stream_laws
