#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "reference/config/data_loader_configuration.hpp"
#include "reference/data/data_loader.hpp"
#include "tests/support/property.hpp"

/// Generated loaders: lengths with and without a tail, empty ones, and every option that decides which rank reads what.
///
/// Example, in a property: `const auto c = make_case(); Accelerator accelerator({.dataloader_config =
/// configuration_of(c)}); accelerator.prepare(DataLoader(dataset, options_of(c)));`
///
/// Thread rule: make_case on the thread of the test, not on ranks; the rest on any thread.
namespace accel::testing::loader_cases {

/// What the loader reads: a dataset in order or shuffled, with a sampler, a stream, or a batch sampler with equal or
/// varying batches.
enum class Source { kDataset, kSampler, kStream, kBatches, kVaryingBatches };

/// A loader and the options under which it is prepared.
struct Case {
  Source source = Source::kDataset;
  int ranks = 1, workers = 0;
  std::int64_t length = 0, batch_size = 1;
  bool shuffle = false, seedable = false, even = true, split = false, drop_last = false, dispatch = false,
       device_specific_seeds = false;
  std::int64_t seed = 0;
  [[nodiscard]] std::int64_t num_indices() const { return source == Source::kSampler ? (length + 2) / 3 : length; }
  [[nodiscard]] std::int64_t step_size() const { return batch_size * (split ? 1 : ranks); }
  /// Returns true if every rank has the same number of steps.
  [[nodiscard]] bool in_step() const {
    return even || dispatch || drop_last || ranks == 1 || source == Source::kStream;
  }
  /// Batches from a batch sampler that rank 0 dispatches are not dropped again: the sampler itself decides on its
  /// tail.
  [[nodiscard]] bool drops_tail() const { return drop_last && !(source == Source::kBatches && dispatch); }
  [[nodiscard]] std::int64_t num_kept() const {
    const auto unit = drops_tail() ? step_size() : batch_size;
    return drop_last ? num_indices() / unit * unit : num_indices();
  }
  [[nodiscard]] bool varies() const { return source == Source::kVaryingBatches; }
};

/// Returns the case in one line, for the message of a failed property.
inline std::string describe(const Case& c) {
  return fmt::format(
      "source {}, {} ranks, {} workers, length {}, batch {}, shuffle {}, seedable {}, even {}, split {}, drop_last {}, "
      "dispatch {}, apart {}, seed {}",
      static_cast<int>(c.source), c.ranks, c.workers, c.length, c.batch_size, c.shuffle, c.seedable, c.even, c.split,
      c.drop_last, c.dispatch, c.device_specific_seeds, c.seed);
}

/// Draws a case with `pick(begin, end)`, which returns a number in [begin, end). `num_ranks` fixes the number of ranks,
/// for processes that are running already; by default there are 1 to 5.
template <typename Pick>
Case draw_case(Pick&& pick, std::optional<int> num_ranks = {}) {
  using Int = std::int64_t;
  Case c;
  c.source = static_cast<Source>(pick(0, 5));
  c.ranks = num_ranks ? *num_ranks : pick(1, 6);
  c.workers = pick(0, 3);
  c.split = c.source != Source::kVaryingBatches && pick(0, 4) == 0;
  c.batch_size = pick(Int{1}, Int{5}) * (c.split ? c.ranks : 1);
  c.length = pick(Int{0}, 3 * c.step_size() + 2);
  c.shuffle = c.source == Source::kDataset && (pick(0, 2) == 0);
  c.seedable = (pick(0, 2) == 0);
  c.even = pick(0, 3) > 0;
  c.drop_last = !c.varies() && pick(0, 4) == 0;
  c.dispatch = !c.varies() && pick(0, 3) == 0;
  c.device_specific_seeds = (pick(0, 2) == 0);
  c.seed = pick(Int{0}, Int{1000});
  return c;
}

/// Draws a case of a property. It shrinks.
inline Case make_case() {
  return draw_case([](auto begin, auto end) { return pick(begin, end); });
}

/// Returns `count` cases with `num_ranks` ranks, the same ones for a seed in every process and on every thread. For
/// ranks that are processes: they cannot share a property, so each of them makes all cases. RapidCheck is not used,
/// because its generators may run on one thread at a time only.
inline std::vector<Case> make_cases(int count, int num_ranks, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](auto begin, auto end) {
    return begin + static_cast<decltype(begin)>(random() % static_cast<std::uint64_t>(end - begin));
  };
  std::vector<Case> cases;
  for (int index = 0; index < count; ++index) cases.push_back(draw_case(pick, num_ranks));
  return cases;
}

inline DataLoaderConfiguration configuration_of(const Case& c) {
  return {.split_batches = c.split,
          .dispatch_batches = c.dispatch,
          .even_batches = c.even,
          .use_seedable_sampler = c.seedable};
}

/// Returns the options of the loader, without a sampler.
inline DataLoaderOptions options_of(const Case& c) {
  return {.batch_size = c.batch_size, .shuffle = c.shuffle, .drop_last = c.drop_last, .num_workers = c.workers};
}

}  // namespace accel::testing::loader_cases
