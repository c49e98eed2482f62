#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "properties/gen/data_sources.hpp"
#include "properties/gen/loader_sizes.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/data/transformed.hpp"

/// Loaders of all kinds whose samples draw random numbers, for runs that are interrupted and resumed.
namespace accel::testing::resumed_loaders {

using Sample = std::pair<std::int64_t, std::int64_t>;  // its number, and a random number that reading it has drawn

inline Sample read_sample(std::int64_t number) { return {number, draw_int64(default_generator())}; }

struct NoisyDataset {
  std::int64_t length = 0;
  [[nodiscard]] std::int64_t size() const { return length; }
  [[nodiscard]] static Sample get(std::int64_t index) { return read_sample(index); }
};

// Makes a stream whose samples draw random numbers.
template <typename Numbers>
auto noisy(Numbers numbers) {
  return transformed(std::move(numbers), &read_sample);
}

// A batch sampler that yields one to three samples in a shuffled order.
class RandomBatches : public BatchSampler {
 public:
  explicit RandomBatches(std::int64_t length) : length_(length) {}
  [[nodiscard]] std::optional<at::Generator> generator() const override { return generator_; }
  void begin_pass() override {
    order_ = at::randperm(length_, generator_, at::kLong);
    next_ = 0;
  }
  std::optional<std::vector<std::int64_t>> next() override {
    std::vector<std::int64_t> batch;
    const auto size = 1 + next_ % 3;
    for (; next_ < length_ && static_cast<std::int64_t>(batch.size()) < size; ++next_)
      batch.push_back(order_[next_].item<std::int64_t>());
    return batch.empty() ? std::nullopt : std::optional(batch);
  }

 private:
  std::int64_t length_, next_ = 0;
  at::Generator generator_ = make_generator(5);
  at::Tensor order_;
};

enum class Source { kInOrder, kShuffled, kReplacement, kRepeated, kSubset, kWeighted, kBatches, kStream, kParts };
inline constexpr const char* kSourceNames[] = {"in order", "shuffled", "replacement", "repeated", "subset",
                                               "weighted", "batches",  "stream",      "parts"};

struct Case {
  Source source = Source::kShuffled;
  int ranks = 1, workers = 0, epochs = 2;
  std::int64_t length = 10, batch_size = 2;
  bool drop_last = false, even = true, split = false, dispatch = false, seedable = false, own_generator = false;
  std::vector<std::int64_t> cuts;  ///< batches after which a life ends, counted within the life
  bool at_epoch_end = false;       ///< a life that reaches the end of its epoch is cut there
  /// Returns true if all ranks have the same number of batches. Otherwise they synchronize between epochs only.
  [[nodiscard]] bool is_in_step() const { return even || dispatch || ranks == 1; }
};

inline std::string describe(const Case& c) {
  return fmt::format(
      "{}, {} ranks, {} workers, {} epochs, length {}, batch {}, drop_last {}, even {}, split {}, dispatch {}, "
      "seedable {}, own generator {}, cuts {}, at end {}",
      kSourceNames[static_cast<int>(c.source)], c.ranks, c.workers, c.epochs, c.length, c.batch_size, c.drop_last,
      c.even, c.split, c.dispatch, c.seedable, c.own_generator, c.cuts, c.at_epoch_end);
}

inline void showValue(const Case& c, std::ostream& out) { out << describe(c); }

/// Number of positions that the ranks divide among themselves, or nothing if ranks read batches or parts of their own.
inline std::optional<std::int64_t> num_shared(const Case& c) {
  switch (c.source) {
    case Source::kReplacement: return 50 + c.length;
    case Source::kRepeated: return 2 * c.length + 1;
    case Source::kSubset: return (c.length + 1) / 2;
    case Source::kWeighted: return c.length + 3;
    case Source::kBatches:
    case Source::kParts: return std::nullopt;
    default: return c.length;
  }
}

/// Returns true if ranks read duplicates at the end of an epoch, because their shards are made even.
inline bool pads(const Case& c) {
  const auto shared = num_shared(c);
  return shared && c.even && !c.dispatch && !c.drop_last && c.ranks > 1 &&
         *shared % (c.batch_size * (c.split ? 1 : c.ranks)) != 0;
}

/// Returns a generator of loaders for 1 to `max_ranks` ranks. All options are drawn independently, because their
/// combinations (workers, dispatching, own generator) share state.
inline rc::Gen<Case> any_case(int max_ranks) {
  return rc::gen::exec([max_ranks] {
    Case c;
    // Batches, streams and parts are rarer, because their ranks do not share one padded order.
    c.source = static_cast<Source>(pick(0, 2) == 0 ? pick(0, 6) : pick(0, 9));
    const bool cuts_itself = c.source == Source::kBatches;  // a batch sampler has no batch size
    c.ranks = pick_ranks(max_ranks);
    c.workers = pick(0, 5);
    c.epochs = pick(1, 4);
    c.split = !cuts_itself && one_in(4);
    c.batch_size = pick<std::int64_t>(1, 5) * (c.split ? c.ranks : 1);
    c.length = pick<std::int64_t>(1, 26);
    c.drop_last = !cuts_itself && one_in(8);
    c.dispatch = !cuts_itself && one_in(6);
    c.even = c.dispatch || !one_in(10);
    c.seedable = pick(0, 2) == 1;
    c.own_generator = !cuts_itself && one_in(3);
    // Several cuts in one epoch use the saved state of a state that was itself loaded.
    for (int count = pick(0, 5); count > 0; --count) c.cuts.push_back(pick<std::int64_t>(0, 7));
    c.at_epoch_end = pick(0, 2) == 1;
    return c;
  });
}

inline std::shared_ptr<Sampler> sampler_of(const Case& c) {
  if (c.source == Source::kReplacement)
    return std::make_shared<RandomSampler>(c.length,
                                           RandomSamplerOptions{.replacement = true, .num_samples = 50 + c.length});
  if (c.source == Source::kRepeated)
    return std::make_shared<RandomSampler>(c.length, RandomSamplerOptions{.num_samples = 2 * c.length + 1});
  if (c.source == Source::kSubset) {
    std::vector<std::int64_t> indices((c.length + 1) / 2);
    for (std::size_t place = 0; place < indices.size(); ++place) indices[place] = 2 * static_cast<std::int64_t>(place);
    return std::make_shared<SubsetRandomSampler>(indices);
  }
  if (c.source == Source::kWeighted)
    return std::make_shared<WeightedRandomSampler>(std::vector<double>(c.length, 0.5),
                                                   WeightedRandomSampler::Options{.num_samples = c.length + 3});
  return nullptr;
}

// Returns uneven parts with at least one sample each, and at least as many parts as ranks.
inline Parts parts_of(const Case& c) {
  Parts parts;
  const auto num_parts = std::max<std::int64_t>(c.ranks, std::min<std::int64_t>(c.length, 2 * c.ranks + c.length % 5));
  for (std::int64_t part = 0; part < num_parts; ++part)
    parts.parts.emplace_back(1000 * part, 1 + (part * part * 7 + c.length) % 6);
  return parts;
}

template <typename Loader>
std::vector<std::vector<std::int64_t>> read_all(Loader& loader, std::int64_t most = 1000) {
  std::vector<std::vector<std::int64_t>> batches;
  for (auto& batch : loader) {
    batches.push_back(ids_of(std::get<0>(batch)));
    if (static_cast<std::int64_t>(batches.size()) == most) break;
  }
  return batches;
}

inline auto shuffled_loader(RankContext& rank, std::int64_t length = 23,
                            std::optional<at::Generator> generator = std::nullopt) {
  return Accelerator({}, rank).prepare(DataLoader(
      NoisyDataset{.length = length}, {.batch_size = 2, .shuffle = true, .generator = std::move(generator)}));
}

}  // namespace accel::testing::resumed_loaders
