#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "properties/gen/data_sources.hpp"
#include "properties/gen/loader_case.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/run_ranks.hpp"

/// Records what all ranks see in the epochs of a loader, for loaders of all modes.
namespace accel::testing::read_epochs {

using Batches = std::vector<Ids>;

using loader_cases::any_case;
using loader_cases::Case;
using loader_cases::describe;
using loader_cases::kSourceNames;
using loader_cases::Source;

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
    Accelerator accelerator({.dataloader_config = loader_cases::configuration_of(c)}, rank);
    set_seed(static_cast<std::uint64_t>(c.seed), {.device_specific = c.device_specific_seeds});
    auto options = loader_cases::options_of(c);
    if (c.source == Source::kSampler) options.sampler = std::make_shared<EveryThird>(c.length);
    if (c.source == Source::kBatches || c.varies()) {
      options = {
          .num_workers = c.workers,
          .batch_sampler = std::make_shared<NumberBatches>(
              c.length, NumberBatches::Options{.batch_size = c.varies() ? std::nullopt : std::optional(c.batch_size),
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
