#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "reference/config/plugins/data_loader_configuration.hpp"
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
  /// Returns true if ranks read duplicates at the end, because their shards are made even.
  [[nodiscard]] bool pads() const {
    return even && !dispatch && !drop_last && !varies() && ranks > 1 && num_indices() % step_size() != 0;
  }
};

inline constexpr const char* kSourceNames[] = {"dataset", "sampler", "stream", "batches", "varying batches"};

/// Returns the case in one line, for the message of a failed property.
inline std::string describe(const Case& c) {
  return fmt::format(
      "{}, {} ranks, {} workers, length {}, batch {}, shuffle {}, seedable {}, even {}, split {}, drop_last {}, "
      "dispatch {}, device-specific seeds {}, seed {}",
      kSourceNames[static_cast<int>(c.source)], c.ranks, c.workers, c.length, c.batch_size, c.shuffle, c.seedable,
      c.even, c.split, c.drop_last, c.dispatch, c.device_specific_seeds, c.seed);
}

/// RapidCheck prints a case of `any_case` by it.
inline void showValue(const Case& c, std::ostream& out) { out << describe(c); }

/// Draws 1 to `most` ranks; a single rank, which never pads, in one of twelve cases.
template <typename Pick>
int draw_ranks(Pick&& pick, int most) {
  return pick(0, 12) == 0 ? 1 : pick(2, most + 1);
}

/// Draws a length of up to three steps and one sample more, so that all kinds of tails are frequent. `step_size`:
/// samples of one step over all ranks. One epoch in a hundred is empty; with `drop_last` a few more have no batch.
template <typename Pick>
std::int64_t draw_length(Pick&& pick, std::int64_t step_size, bool drop_last) {
  if (pick(0, 100) == 99) return 0;
  const bool has_full_step = drop_last && pick(0, 8) > 0;
  return pick(has_full_step ? step_size : std::int64_t{1}, 3 * step_size + 2);
}

/// Draws a case with `pick(begin, end)`, which returns a number in [begin, end). `num_ranks` fixes the number of ranks,
/// for processes that are running already; by default there are 1 to 5. Uniform options would give many cases that
/// prove little; properties/distribution_laws.cpp checks the floors.
template <typename Pick>
Case draw_case(Pick&& pick, std::optional<int> num_ranks = {}) {
  using Int = std::int64_t;
  const auto one_in = [&](int n) { return pick(0, n) == n - 1; };
  Case c;
  // Ranks divide varying batches without padding, so these are rarer than the other sources.
  c.source = one_in(8) ? Source::kVaryingBatches : static_cast<Source>(pick(0, 4));
  c.ranks = num_ranks ? *num_ranks : draw_ranks(pick, 5);
  c.workers = pick(0, 3);
  c.split = !c.varies() && one_in(4);
  c.batch_size = pick(Int{1}, Int{6}) * (c.split ? c.ranks : 1);
  c.drop_last = !c.varies() && one_in(8);
  c.length = draw_length(pick, c.step_size(), c.drop_last) * (c.source == Source::kSampler ? 3 : 1);
  c.shuffle = c.source == Source::kDataset && pick(0, 2) == 1;
  c.seedable = pick(0, 2) == 1;
  c.even = !one_in(8);
  c.dispatch = !c.varies() && one_in(6);
  c.device_specific_seeds = pick(0, 2) == 1;
  c.seed = pick(Int{0}, Int{1000});
  return c;
}

/// Draws a case of a property. It shrinks.
inline Case make_case() {
  return draw_case([](auto begin, auto end) { return pick(begin, end); });
}

/// The same as a generator, whose cases RapidCheck prints in one line.
inline rc::Gen<Case> any_case() {
  return rc::gen::exec([] { return make_case(); });
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
