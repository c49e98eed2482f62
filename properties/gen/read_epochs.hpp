#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "properties/gen/data_sources.hpp"
#include "properties/gen/loader_sizes.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

/// Records what all ranks see in the epochs of a loader, for loaders of all modes.
namespace accel::testing::read_epochs {

using Batches = std::vector<Ids>;

enum class Source { kDataset, kSampler, kStream, kBatches, kVaryingBatches };

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

inline std::string describe(const Case& c) {
  return fmt::format(
      "{}, {} ranks, {} workers, length {}, batch {}, shuffle {}, seedable {}, even {}, split {}, drop_last {}, "
      "dispatch {}, device-specific seeds {}, seed {}",
      kSourceNames[static_cast<int>(c.source)], c.ranks, c.workers, c.length, c.batch_size, c.shuffle, c.seedable,
      c.even, c.split, c.drop_last, c.dispatch, c.device_specific_seeds, c.seed);
}

inline void showValue(const Case& c, std::ostream& out) { out << describe(c); }

/// Returns a generator of loaders of all modes for 1 to 5 ranks.
inline rc::Gen<Case> any_case() {
  return rc::gen::exec([] {
    Case c;
    // Ranks divide varying batches without padding, so these are rarer than the other sources.
    c.source = static_cast<Source>(one_in(8) ? 4 : pick(0, 4));
    c.ranks = pick_ranks(5);
    c.workers = pick(0, 3);
    c.split = !c.varies() && one_in(4);
    c.batch_size = pick<std::int64_t>(1, 6) * (c.split ? c.ranks : 1);
    c.drop_last = !c.varies() && one_in(8);
    c.length = pick_length(c.step_size(), c.drop_last) * (c.source == Source::kSampler ? 3 : 1);
    c.shuffle = c.source == Source::kDataset && pick(0, 2) == 1;
    c.seedable = pick(0, 2) == 1;
    c.even = !one_in(8);
    c.dispatch = !c.varies() && one_in(6);
    c.device_specific_seeds = pick(0, 2) == 1;
    c.seed = pick<std::int64_t>(0, 1000);
    return c;
  });
}

/// What one rank saw in one epoch.
struct Epoch {
  Batches batches, gathered;
  std::vector<bool> ends;
  std::optional<std::int64_t> length;
  std::int64_t num_read = 0;
  bool is_active_after = false;
};
using Seen = std::vector<std::vector<Epoch>>;  // [epoch][rank]

class CountedDataset {
 public:
  CountedDataset(std::int64_t length, std::atomic<std::int64_t>* num_read) : length_(length), num_read_(num_read) {}
  [[nodiscard]] std::int64_t size() const { return length_; }
  [[nodiscard]] std::int64_t get(std::int64_t index) const {
    ++*num_read_;
    return index;
  }

 private:
  std::int64_t length_;
  std::atomic<std::int64_t>* num_read_;
};

class CountedStream {
 public:
  CountedStream(std::int64_t length, std::atomic<std::int64_t>* num_read) : length_(length), num_read_(num_read) {}
  void reset() { next_ = 0; }
  std::optional<std::int64_t> next() {
    if (next_ == length_) return std::nullopt;
    ++*num_read_;
    return next_++;
  }

 private:
  std::int64_t length_, next_ = 0;
  std::atomic<std::int64_t>* num_read_;
};

struct History {
  int epochs = 2, first_epoch = 0;
  bool draws_between = false;     ///< rank 0 draws random numbers between batches, the others do not
  bool keeps_duplicates = false;  ///< a planted bug: metrics are gathered by gather
};

template <typename Loader>
std::vector<Epoch> epochs_of_rank(Accelerator& accelerator, Loader loader, const Case& c, const History& history,
                                  std::atomic<std::int64_t>& num_read) {
  std::vector<Epoch> epochs;
  if (history.first_epoch > 0) loader.set_epoch(history.first_epoch);
  for (int index = 0; index < history.epochs; ++index) {
    Epoch epoch;
    const bool knows_length = c.source == Source::kDataset || c.source == Source::kSampler;
    if (knows_length) epoch.length = loader.size();
    num_read = 0;
    for (auto& ids : loader) {
      epoch.batches.push_back(ids_of(ids));
      epoch.ends.push_back(accelerator.gradient_state().end_of_dataloader());
      if (c.in_step() && !c.varies()) {
        const auto all = history.keeps_duplicates ? accelerator.gather(ids) : accelerator.gather_for_metrics(ids);
        epoch.gathered.push_back(ids_of(all));
      }
      if (history.draws_between && accelerator.process_index() == 0) draw_int64(default_generator());
    }
    epoch.num_read = num_read;
    epoch.is_active_after = accelerator.gradient_state().in_dataloader();
    epochs.push_back(std::move(epoch));
  }
  return epochs;
}

inline Seen see(const Case& c, const History& history = {}) {
  std::vector<std::atomic<std::int64_t>> num_read(c.ranks);
  const auto of_ranks = collect_ranks(Backend::kSim, c.ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.split_batches = c.split,
                                                   .dispatch_batches = c.dispatch,
                                                   .even_batches = c.even,
                                                   .use_seedable_sampler = c.seedable}},
                            rank);
    set_seed(static_cast<std::uint64_t>(c.seed), {.device_specific = c.device_specific_seeds});
    DataLoaderOptions options{
        .batch_size = c.batch_size, .shuffle = c.shuffle, .drop_last = c.drop_last, .num_workers = c.workers};
    if (c.source == Source::kSampler) options.sampler = std::make_shared<EveryThird>(c.length);
    if (c.source == Source::kBatches || c.varies()) {
      options = {.num_workers = c.workers,
                 .batch_sampler = std::make_shared<CutRange>(
                     c.length, CutRange::Options{.batch_size = c.varies() ? std::nullopt : std::optional(c.batch_size),
                                                 .drop_last = c.drop_last,
                                                 .reports_size = false})};
    }
    auto& counter = num_read[rank.rank];
    if (c.source == Source::kStream)
      return epochs_of_rank(accelerator, accelerator.prepare(DataLoader(CountedStream(c.length, &counter), options)), c,
                            history, counter);
    return epochs_of_rank(accelerator, accelerator.prepare(DataLoader(CountedDataset(c.length, &counter), options)), c,
                          history, counter);
  });
  Seen seen(history.epochs);
  for (const auto& epochs : of_ranks) {
    for (std::size_t index = 0; index < epochs.size(); ++index) seen[index].push_back(epochs[index]);
  }
  return seen;
}

/// Returns all samples that were issued, step by step, those of rank 0 first.
inline Ids issued(const std::vector<Epoch>& ranks) {
  Ids all;
  for (std::size_t step = 0; step < ranks.front().batches.size(); ++step) {
    for (const auto& rank : ranks) {
      if (step < rank.batches.size()) all.insert(all.end(), rank.batches[step].begin(), rank.batches[step].end());
    }
  }
  return all;
}

}  // namespace accel::testing::read_epochs
