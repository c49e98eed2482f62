// Streams of parts: every rank and worker reads its own, all take as many steps, and metrics hold every sample once.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "reference/accelerator/accelerator.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing {
namespace {

// Parts of different lengths; all numbers together are 0, 1, 2, ...
struct Parts {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;  // first number, length
  std::atomic<std::int64_t>* num_read = nullptr;
  std::size_t part = 0;
  std::int64_t place = 0;

  static Parts of(const std::vector<std::int64_t>& lengths, std::atomic<std::int64_t>* num_read) {
    Parts parts{.num_read = num_read};
    std::int64_t first = 0;
    for (const auto length : lengths) parts.parts.emplace_back(std::exchange(first, first + length), length);
    return parts;
  }
  void reset() { part = 0, place = 0; }
  std::optional<std::int64_t> next() {
    while (part < parts.size() && place == parts[part].second) ++part, place = 0;
    if (part == parts.size()) return std::nullopt;
    ++*num_read;
    return parts[part].first + place++;
  }
  [[nodiscard]] std::int64_t num_shards() const { return static_cast<std::int64_t>(parts.size()); }
  [[nodiscard]] Parts shard(std::int64_t num_shards, std::int64_t index) const {
    Parts own{.num_read = num_read};
    for (auto p = index; p < this->num_shards(); p += num_shards) own.parts.push_back(parts[p]);
    return own;
  }
};

struct Case {
  std::vector<std::int64_t> lengths;
  int ranks = 1, workers = 0;
  std::int64_t batch_size = 1;
  bool drop_last = false;
  std::optional<bool> dispatch;
};

struct Outcome {
  std::vector<std::int64_t> gathered;
  std::int64_t steps = 0, num_ends = 0, read = 0;
};

std::vector<Outcome> read(Backend backend, const Case& c) {
  std::vector<std::atomic<std::int64_t>> num_read(c.ranks);
  auto outcomes = collect_ranks(backend, c.ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = c.dispatch}}, rank);
    auto loader = accelerator.prepare(DataLoader(Parts::of(c.lengths, &num_read[rank.rank]), {.batch_size = c.batch_size, .drop_last = c.drop_last, .num_workers = c.workers}));
    Outcome outcome;
    for (auto& ids : loader) {
      ++outcome.steps;
      outcome.num_ends += accelerator.gradient_state().end_of_dataloader() ? 1 : 0;
      const auto all = accelerator.gather_for_metrics(ids);
      for (std::int64_t row = 0; row < all.size(0); ++row) outcome.gathered.push_back(all[row].item<std::int64_t>());
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
  for (int part = 0; part < num_parts; ++part) c.lengths.push_back(pick<std::int64_t>(part < c.ranks ? 1 : 0, 9));
  return c;
}

void check_case(Backend backend, const Case& c) {
  RC_LOG(fmt::format("parts {}, ranks {}, workers {}, batch {}, drop_last {}, dispatch {}", c.lengths, c.ranks, c.workers, c.batch_size, c.drop_last,
                     c.dispatch ? (*c.dispatch ? "true" : "false") : "null"));
  const auto total = std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
  const auto outcomes = read(backend, c);
  for (const auto& outcome : outcomes) {
    RC_ASSERT(outcome.steps == outcomes[0].steps);
    RC_ASSERT(outcome.num_ends == (outcome.steps > 0 ? 1 : 0));
    auto gathered = outcome.gathered;
    RC_ASSERT(gathered == outcomes[0].gathered);
    std::sort(gathered.begin(), gathered.end());
    RC_ASSERT(std::adjacent_find(gathered.begin(), gathered.end()) == gathered.end());
    if (!c.drop_last) RC_ASSERT(static_cast<std::int64_t>(gathered.size()) == total);
  }
  // Nobody reads a sample of another's: over all ranks each is read once, but for what a rank reads ahead of an early end.
  const auto num_read = std::accumulate(outcomes.begin(), outcomes.end(), std::int64_t{0}, [](auto sum, const auto& outcome) { return sum + outcome.read; });
  RC_ASSERT(num_read <= total);
}

TEST(StreamLaws, PartsAreReadOnceAndMetricsHoldEverySampleOnce) {
  expect_property(250, [] { check_case(Backend::kSim, make_case(5)); });
}

TEST(StreamLaws, TheSameOnGloo) {
  expect_property(25, [] { check_case(Backend::kGlooThreads, make_case(3)); });
}

// Accelerate and torch drop the short end of every worker.
TEST(StreamLaws, DropLastDropsLessThanOneStepWhateverTheNumberOfWorkers) {
  expect_property(150, [] {
    auto c = make_case(4);
    c.drop_last = true;
    c.dispatch = true;
    check_case(Backend::kSim, c);
    const auto total = std::accumulate(c.lengths.begin(), c.lengths.end(), std::int64_t{0});
    RC_ASSERT(total - static_cast<std::int64_t>(read(Backend::kSim, c)[0].gathered.size()) < c.batch_size * c.ranks);
  });
}

TEST(ShardedStreamTest, ARankWithoutASampleIsAnErrorOnEveryRank) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 3, [](RankContext& rank) {
      std::atomic<std::int64_t> num_read{0};
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      auto loader = accelerator.prepare(DataLoader(Parts::of({2, 0, 2}, &num_read), {.batch_size = 2}));
      try {
        for ([[maybe_unused]] auto& batch : loader) {}
        ADD_FAILURE() << "rank " << rank.rank << " read to the end";
      } catch (const ArgumentError& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 of 3 hold no sample"));
      }
    });
  }
}

TEST(ShardedStreamTest, WhatOneRankCannotReadEveryRankHearsOf) {
  struct Broken : Parts {
    std::optional<std::int64_t> next() {
      const auto number = Parts::next();
      if (number == 5) throw StateError("part 1 is damaged");
      return number;
    }
    [[nodiscard]] Broken shard(std::int64_t num_shards, std::int64_t index) const { return {Parts::shard(num_shards, index)}; }
  };
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 2, [](RankContext& rank) {
      std::atomic<std::int64_t> num_read{0};
      Accelerator accelerator({.dataloader_config = {.dispatch_batches = false}}, rank);
      auto loader = accelerator.prepare(DataLoader(Broken{Parts::of({4, 4}, &num_read)}, {.batch_size = 1}));
      try {
        for ([[maybe_unused]] auto& batch : loader) {}
        ADD_FAILURE() << "rank " << rank.rank << " read to the end";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr(rank.rank == 1 ? "part 1 is damaged" : "rank 1 could not read"));
      }
    });
  }
}

}  // namespace
}  // namespace accel::testing
