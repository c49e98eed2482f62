// The laws of an epoch, each checked on what real loaders do in every mode, and each shown a planted bug that it must
// catch.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "properties/gen/data_sources.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::data_laws {
namespace {

using Batches = std::vector<Ids>;

enum class Source { kDataset, kSampler, kStream, kBatches, kVaryingBatches };

struct Case {
  Source source = Source::kDataset;
  int ranks = 1, workers = 0;
  std::int64_t length = 0, batch_size = 1;
  bool shuffle = false, seedable = false, even = true, split = false, drop_last = false, dispatch = false,
       seeded_apart = false;
  std::int64_t seed = 0;
  [[nodiscard]] std::int64_t num_indices() const { return source == Source::kSampler ? (length + 2) / 3 : length; }
  [[nodiscard]] std::int64_t step_size() const { return batch_size * (split ? 1 : ranks); }
  /// Every rank has as many steps as the others.
  [[nodiscard]] bool in_step() const {
    return even || dispatch || drop_last || ranks == 1 || source == Source::kStream;
  }
  /// What rank 0 reads by a batch sampler is dispatched to the last batch that this gives.
  [[nodiscard]] bool drops_tail() const { return drop_last && !(source == Source::kBatches && dispatch); }
  [[nodiscard]] std::int64_t num_kept() const {
    const auto unit = drops_tail() ? step_size() : batch_size;
    return drop_last ? num_indices() / unit * unit : num_indices();
  }
  [[nodiscard]] bool varies() const { return source == Source::kVaryingBatches; }
};

std::string describe(const Case& c) {
  return fmt::format(
      "source {}, {} ranks, {} workers, length {}, batch {}, shuffle {}, seedable {}, even {}, split {}, drop_last {}, "
      "dispatch {}, apart {}, seed {}",
      static_cast<int>(c.source), c.ranks, c.workers, c.length, c.batch_size, c.shuffle, c.seedable, c.even, c.split,
      c.drop_last, c.dispatch, c.seeded_apart, c.seed);
}

Case make_case() {
  Case c;
  c.source = static_cast<Source>(pick(0, 5));
  c.ranks = pick(1, 6);
  c.workers = pick(0, 3);
  c.split = c.source != Source::kVaryingBatches && pick(0, 4) == 0;
  c.batch_size = pick<std::int64_t>(1, 5) * (c.split ? c.ranks : 1);
  c.length = pick<std::int64_t>(0, 3 * c.step_size() + 2);
  c.shuffle = c.source == Source::kDataset && (pick(0, 2) == 0);
  c.seedable = (pick(0, 2) == 0);
  c.even = pick(0, 3) > 0;
  c.drop_last = !c.varies() && pick(0, 4) == 0;
  c.dispatch = !c.varies() && pick(0, 3) == 0;
  c.seeded_apart = (pick(0, 2) == 0);
  c.seed = pick<std::int64_t>(0, 1000);
  return c;
}

/// What one rank saw in one epoch.
struct Epoch {
  Batches batches, gathered;
  std::vector<bool> ends;
  std::optional<std::int64_t> length;
  std::int64_t num_read = 0;
  bool is_active_behind = false;
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
  bool draws_between = false;  ///< one rank draws random numbers that others do not
};

template <typename Loader>
std::vector<Epoch> read_epochs(Accelerator& accelerator, Loader loader, const Case& c, const History& history,
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
      if (c.in_step() && !c.varies()) epoch.gathered.push_back(ids_of(accelerator.gather_for_metrics(ids)));
      if (history.draws_between && accelerator.process_index() == 0) draw_int64(default_generator());
    }
    epoch.num_read = num_read;
    epoch.is_active_behind = accelerator.gradient_state().in_dataloader();
    epochs.push_back(std::move(epoch));
  }
  return epochs;
}

Seen see(const Case& c, const History& history = {}) {
  std::vector<std::atomic<std::int64_t>> num_read(c.ranks);
  const auto of_ranks = collect_ranks(Backend::kSim, c.ranks, [&](RankContext& rank) {
    Accelerator accelerator({.dataloader_config = {.split_batches = c.split,
                                                   .dispatch_batches = c.dispatch,
                                                   .even_batches = c.even,
                                                   .use_seedable_sampler = c.seedable}},
                            rank);
    set_seed(static_cast<std::uint64_t>(c.seed), {.device_specific = c.seeded_apart});
    DataLoaderOptions options{
        .batch_size = c.batch_size, .shuffle = c.shuffle, .drop_last = c.drop_last, .num_workers = c.workers};
    if (c.source == Source::kSampler) options.sampler = std::make_shared<EveryThird>(c.length);
    if (c.source == Source::kBatches || c.varies()) {
      options = {.num_workers = c.workers,
                 .batch_sampler = std::make_shared<CutRange>(
                     c.length, CutRange::Options{.batch_size = c.varies() ? std::nullopt : std::optional(c.batch_size),
                                                 .drop_last = c.drop_last,
                                                 .tells_size = false})};
    }
    auto& counter = num_read[rank.rank];
    if (c.source == Source::kStream)
      return read_epochs(accelerator, accelerator.prepare(DataLoader(CountedStream(c.length, &counter), options)), c,
                         history, counter);
    return read_epochs(accelerator, accelerator.prepare(DataLoader(CountedDataset(c.length, &counter), options)), c,
                       history, counter);
  });
  Seen seen(history.epochs);
  for (const auto& epochs : of_ranks) {
    for (std::size_t index = 0; index < epochs.size(); ++index) seen[index].push_back(epochs[index]);
  }
  return seen;
}

/// All that was issued, step by step, rank 0's first.
Ids issued(const std::vector<Epoch>& ranks) {
  Ids all;
  for (std::size_t step = 0; step < ranks.front().batches.size(); ++step) {
    for (const auto& rank : ranks) {
      if (step < rank.batches.size()) all.insert(all.end(), rank.batches[step].begin(), rank.batches[step].end());
    }
  }
  return all;
}

Ids source_order(const Case& c) {
  Ids order(c.num_indices());
  for (std::size_t place = 0; place < order.size(); ++place)
    order[place] = static_cast<std::int64_t>(place) * (c.source == Source::kSampler ? 3 : 1);
  return order;
}

// --- the laws --------------------------------------------------------------------------------------------------------

struct Law {
  std::string name;
  std::function<bool(const Case&, const std::vector<Epoch>&)> holds;  ///< for one epoch
  std::string bug;
  std::function<void(const Case&, std::vector<Epoch>&)> plant;
};

bool has_batches(const std::vector<Epoch>& ranks) { return !ranks.front().batches.empty(); }

std::vector<Law> laws() {
  return {
      {"the length is the number of batches",
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           return e.length.value_or(e.batches.size()) == static_cast<std::int64_t>(e.batches.size());
         });
       },
       "a rank without a tail counts it",
       [](const Case&, auto& ranks) {
         if (ranks.back().length) ++*ranks.back().length;
       }},

      {"all ranks take as many steps, unless even_batches is off",
       [](const Case& c, const auto& ranks) {
         return !c.in_step() || std::all_of(ranks.begin(), ranks.end(), [&](const Epoch& e) {
           return e.batches.size() == ranks.front().batches.size();
         });
       },
       "the last rank ends early",
       [](const Case&, auto& ranks) {
         if (!ranks.back().batches.empty()) ranks.back().batches.pop_back();
       }},

      {"with even_batches every rank's batch is a full one",
       [](const Case& c, const auto& ranks) {
         if (!c.even || c.dispatch || c.varies() || c.ranks == 1) return true;
         return std::all_of(ranks.begin(), ranks.end(), [&](const Epoch& e) {
           return std::all_of(e.batches.begin(), e.batches.end(), [&](const Ids& batch) {
             return static_cast<std::int64_t>(batch.size()) == c.step_size() / c.ranks;
           });
         });
       },
       "the short batch is not filled up",
       [](const Case&, auto& ranks) {
         if (!ranks.back().batches.empty()) ranks.back().batches.back().pop_back();
       }},

      {"no batch is empty",
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           return std::none_of(e.batches.begin(), e.batches.end(), [](const Ids& b) { return b.empty(); });
         });
       },
       "a dispatched tail leaves a rank without a row",
       [](const Case& c, auto& ranks) {
         if (c.dispatch && has_batches(ranks)) ranks.back().batches.back().clear();
       }},

      {"without drop_last every sample is issued",
       [](const Case& c, const auto& ranks) {
         const auto all = issued(ranks);
         const std::set<std::int64_t> unique(all.begin(), all.end());
         return c.drop_last || static_cast<std::int64_t>(unique.size()) == c.num_indices();
       },
       "the tail is lost",
       [](const Case&, auto& ranks) {
         for (auto& rank : ranks)
           if (!rank.batches.empty()) rank.batches.pop_back();
       }},

      {"drop_last drops less than a step, and repeats nothing",
       [](const Case& c, const auto& ranks) {
         const auto all = issued(ranks);
         const std::set<std::int64_t> unique(all.begin(), all.end());
         return !c.drops_tail() || (unique.size() == all.size() &&
                                    c.num_indices() - static_cast<std::int64_t>(all.size()) < c.step_size());
       },
       "every rank drops its own tail",
       [](const Case& c, auto& ranks) {
         if (c.drop_last)
           for (auto& rank : ranks) rank.batches.clear();
       }},

      {"duplicates are (-N) mod the step's size, and in order the padding is the cyclic start",
       [](const Case& c, const auto& ranks) {
         if (!c.even || c.dispatch || c.drop_last || c.varies() || c.ranks == 1) return true;
         const auto all = issued(ranks);
         const auto padding = (c.step_size() - c.num_indices() % c.step_size()) % c.step_size();
         if (static_cast<std::int64_t>(all.size()) != c.num_indices() + (c.num_indices() == 0 ? 0 : padding))
           return false;
         for (std::size_t place = 0; place < all.size(); ++place) {
           if (all[place] != all[place % c.num_indices()]) return false;
         }
         return true;
       },
       "padded from the wrong place",
       [](const Case& c, auto& ranks) {
         if (!c.even || c.dispatch || c.drop_last || c.varies() || c.ranks == 1 || !has_batches(ranks) ||
             c.num_indices() % c.step_size() == 0)
           return;
         auto& last = ranks.back().batches.back();
         if (c.num_indices() > 1)
           last.back() = issued(ranks)[static_cast<std::size_t>((c.num_indices() + 1) % c.num_indices())] == last.back()
                             ? -1
                             : issued(ranks)[1];
       }},

      {"uneven shards hold every sample once",
       [](const Case& c, const auto& ranks) {
         if (c.even || c.dispatch || c.drop_last || c.source == Source::kStream) return true;
         auto all = issued(ranks);
         std::sort(all.begin(), all.end());
         return all == source_order(c);
       },
       "a sample is on two ranks",
       [](const Case& c, auto& ranks) {
         if (!c.even && c.ranks > 1 && has_batches(ranks))
           ranks.back().batches.push_back(ranks.front().batches.front());
       }},

      {"the end is announced with the last batch and no other",
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           for (std::size_t step = 0; step < e.ends.size(); ++step) {
             if (e.ends[step] != (step + 1 == e.ends.size())) return false;
           }
           return true;
         });
       },
       "the end of the last epoch is still announced",
       [](const Case&, auto& ranks) {
         if (ranks.front().ends.size() > 1) ranks.front().ends.front() = true;
       }},

      {"metrics hold the source once, in the order of issue, on every rank",
       [](const Case& c, const auto& ranks) {
         if (!c.in_step() || c.varies() || (!c.even && !c.dispatch && c.ranks > 1)) return true;
         const auto all = issued(ranks);
         const Ids expected(all.begin(),
                            all.begin() + std::min<std::int64_t>(c.num_kept(), static_cast<std::int64_t>(all.size())));
         return std::all_of(ranks.begin(), ranks.end(), [&](const Epoch& e) {
           Ids gathered;
           for (const auto& step : e.gathered) gathered.insert(gathered.end(), step.begin(), step.end());
           return gathered == expected;
         });
       },
       "duplicates stay in",
       [](const Case&, auto& ranks) {
         if (!ranks.front().gathered.empty()) ranks.front().gathered.back().push_back(0);
       }},

      {"nobody reads more than it is given; of a stream that it shares, all of it once",
       [](const Case& c, const auto& ranks) {
         for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
           std::int64_t given = 0;
           for (const auto& batch : ranks[rank].batches) given += static_cast<std::int64_t>(batch.size());
           if (c.dispatch) given = rank == 0 ? c.num_indices() : 0;
           const auto most = c.source == Source::kStream && !c.dispatch ? c.length : given;
           if (ranks[rank].num_read > most) return false;
         }
         return true;
       },
       "every rank reads everything",
       [](const Case& c, auto& ranks) {
         for (auto& rank : ranks) rank.num_read += c.length;
       }},

      {"no trace is left behind",
       [](const Case&, const auto& ranks) {
         return std::none_of(ranks.begin(), ranks.end(), [](const Epoch& e) { return e.is_active_behind; });
       },
       "the loader stays active", [](const Case&, auto& ranks) { ranks.front().is_active_behind = true; }},
  };
}

TEST(DataLaws, EveryLawHoldsInEveryMode) {
  const auto all = laws();
  expect_property(1500, [&] {
    const auto c = make_case();
    RC_LOG(describe(c));
    for (const auto& ranks : see(c)) {
      for (const auto& law : all) {
        if (!law.holds(c, ranks)) RC_FAIL("broken: " + law.name);
      }
    }
  });
}

TEST(DataLaws, EveryLawCatchesItsPlantedBug) {
  for (const auto& law : laws()) {
    expect_property_fails(law.name + ": " + law.bug, 200, [&] {
      const auto c = make_case();
      for (auto& ranks : see(c)) {
        law.plant(c, ranks);
        RC_ASSERT(law.holds(c, ranks));
      }
    });
  }
}

// --- laws on order ---------------------------------------------------------------------------------------------------

std::vector<Batches> batches_of(const Seen& seen, std::size_t epoch) {
  std::vector<Batches> batches;
  for (const auto& rank : seen.at(epoch)) batches.push_back(rank.batches);
  return batches;
}

Case shuffled_case() {
  auto c = make_case();
  c.source = Source::kDataset;
  c.shuffle = true;
  c.length += 20;  // two orders of so many samples are not equal by chance
  return c;
}

// `order(c, epoch, has_history)`: of a loader that is told its epoch, or has come to it by itself.
using Order = std::function<std::vector<Batches>(const Case&, int epoch, bool has_history)>;

std::vector<Batches> real_order(const Case& c, int epoch, bool has_history) {
  if (has_history)
    return batches_of(see(c, {.epochs = epoch + 1, .draws_between = true}), static_cast<std::size_t>(epoch));
  return batches_of(see(c, {.epochs = 1, .first_epoch = epoch}), 0);
}

void check_order_is_a_function_of_seed_and_epoch(const Order& order) {
  auto c = shuffled_case();
  c.seedable = true;
  const auto epoch = pick(0, 3);
  RC_LOG(describe(c));
  RC_ASSERT(order(c, epoch, false) == order(c, epoch, true));
  auto other_seed = c;
  ++other_seed.seed;
  RC_ASSERT(order(c, epoch, false) != order(other_seed, epoch, false));
  RC_ASSERT(order(c, epoch, false) != order(c, epoch + 1, false));
}

TEST(OrderLaws, ASeedableOrderIsAFunctionOfSeedAndEpoch) {
  expect_property(100, [] { check_order_is_a_function_of_seed_and_epoch(real_order); });
}

TEST(OrderLaws, ThatLawCatchesAnEpochThatIsCountedTwiceAndASeedThatIsNotUsed) {
  const Order counted_twice = [](const Case& c, int epoch, bool has_history) {
    return real_order(c, has_history ? 2 * epoch : epoch, has_history);
  };
  const Order one_seed = [](Case c, int epoch, bool has_history) {
    c.seed = 1;
    return real_order(c, epoch, has_history);
  };
  const Order one_epoch = [](const Case& c, int, bool has_history) { return real_order(c, 0, has_history); };
  for (const auto& [name, planted] : std::map<std::string, Order>{
           {"counted twice", counted_twice}, {"one seed", one_seed}, {"one order for all epochs", one_epoch}}) {
    expect_property_fails(name, 50, [&, &order = planted] { check_order_is_a_function_of_seed_and_epoch(order); });
  }
}

void check_ranks_agree(bool draws_from_the_ranks_generator) {
  auto c = shuffled_case();
  c.seeded_apart = true;
  c.dispatch = false;
  c.seedable = false;
  if (c.ranks == 1) return;
  RC_LOG(describe(c));
  auto seen = see(c), drawing = see(c, {.draws_between = true});
  if (draws_from_the_ranks_generator) {  // the bug: every rank takes its part of an order of its own
    for (int rank = 0; rank < c.ranks; ++rank) {
      auto alone = c;
      alone.seed += rank;
      alone.seeded_apart = false;
      seen[0][rank] = see(alone)[0][rank];
    }
  }
  for (std::size_t epoch = 0; epoch < seen.size(); ++epoch) {
    const auto all = issued(seen[epoch]);
    const auto unique = std::set<std::int64_t>(all.begin(), all.end()).size();
    RC_ASSERT(c.drop_last || static_cast<std::int64_t>(unique) == c.length);
    RC_ASSERT(batches_of(seen, epoch) == batches_of(drawing, epoch));
  }
}

TEST(OrderLaws, RanksSeededApartShareOneOrderAndExtraDrawsOnOneRankChangeNothing) {
  expect_property(100, [] { check_ranks_agree(false); });
}
TEST(OrderLaws, ThatLawCatchesOrdersOfTheRanksOwn) {
  expect_property_fails("an order per rank", 50, [] { check_ranks_agree(true); });
}

}  // namespace
}  // namespace accel::testing::data_laws
