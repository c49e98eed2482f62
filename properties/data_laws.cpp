// The properties of one epoch, each checked on real loaders in every mode. Each property also comes with a planted
// bug that it must catch: a property that holds for wrong data proves nothing.
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "properties/gen/read_epochs.hpp"

namespace accel::testing::data_laws {
namespace {

using namespace read_epochs;

// The samples in the order of the source. The sampler of Source::kSampler takes every third sample.
Ids source_order(const Case& c) {
  Ids order(c.num_indices());
  for (std::size_t place = 0; place < order.size(); ++place)
    order[place] = static_cast<std::int64_t>(place) * (c.source == Source::kSampler ? 3 : 1);
  return order;
}

// --- the laws --------------------------------------------------------------------------------------------------------

// A fault of the loaders. Where an option can cause it, the loaders really run with it, and `run` changes how. Other
// faults change the recorded epochs in the way in which a broken loader would produce them.
struct Bug {
  std::string name;
  std::function<void(Case&, History&)> run = [](Case&, History&) {};
  std::function<void(const Case&, std::vector<Epoch>&)> record = [](const Case&, std::vector<Epoch>&) {};
};

struct Law {
  std::string name;
  std::function<bool(const Case&, const std::vector<Epoch>&)> holds;  ///< for one epoch
  Bug bug;
};

bool has_batches(const std::vector<Epoch>& ranks) { return !ranks.front().batches.empty(); }

// Each law with a bug that it has to find.
std::vector<Law> laws() {
  return {
      {"the length is the number of batches",
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           return e.length.value_or(e.batches.size()) == static_cast<std::int64_t>(e.batches.size());
         });
       },
       {.name = "a rank without a tail counts it",
        .record =
            [](const Case&, auto& ranks) {
              if (ranks.back().length) ++*ranks.back().length;
            }}},

      {"all ranks take as many steps, unless even_batches is off",
       [](const Case& c, const auto& ranks) {
         return !c.in_step() || std::all_of(ranks.begin(), ranks.end(), [&](const Epoch& e) {
           return e.batches.size() == ranks.front().batches.size();
         });
       },
       {.name = "even_batches is ignored", .run = [](Case& c, History&) { c.even = false; }}},

      {"with even_batches every rank's batch is a full one",
       // Batches of a batch sampler vary in size, and dispatched tails are cut from what was read, so neither is
       // padded.
       [](const Case& c, const auto& ranks) {
         if (!c.even || c.dispatch || c.varies() || c.ranks == 1) return true;
         return std::all_of(ranks.begin(), ranks.end(), [&](const Epoch& e) {
           return std::all_of(e.batches.begin(), e.batches.end(), [&](const Ids& batch) {
             return static_cast<std::int64_t>(batch.size()) == c.step_size() / c.ranks;
           });
         });
       },
       {.name = "even_batches is ignored", .run = [](Case& c, History&) { c.even = false; }}},

      {"no batch is empty",
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           return std::none_of(e.batches.begin(), e.batches.end(), [](const Ids& b) { return b.empty(); });
         });
       },
       {.name = "a dispatched tail leaves a rank without a row",
        .record =
            [](const Case& c, auto& ranks) {
              if (c.dispatch && has_batches(ranks)) ranks.back().batches.back().clear();
            }}},

      {"without drop_last every sample is issued",
       [](const Case& c, const auto& ranks) {
         const auto all = issued(ranks);
         const std::set<std::int64_t> unique(all.begin(), all.end());
         return c.drop_last || static_cast<std::int64_t>(unique.size()) == c.num_indices();
       },
       {.name = "the tail is always dropped", .run = [](Case& c, History&) { c.drop_last = !c.varies(); }}},

      {"drop_last drops less than a step, and repeats nothing",
       [](const Case& c, const auto& ranks) {
         const auto all = issued(ranks);
         const std::set<std::int64_t> unique(all.begin(), all.end());
         // An unpadded epoch may drop at most an incomplete step; dropping a tail per rank would lose up to one
         // batch per rank.
         return !c.drops_tail() || (unique.size() == all.size() &&
                                    c.num_indices() - static_cast<std::int64_t>(all.size()) < c.step_size());
       },
       {.name = "drop_last is ignored", .run = [](Case& c, History&) { c.drop_last = false; }}},

      {"duplicates are (-N) mod the step's size, and in order the padding is the cyclic start",
       [](const Case& c, const auto& ranks) {
         // accelerate/data_loader.py, BatchSamplerShard: the last step is filled with samples from the start of the
         // epoch, again and again if the epoch is shorter than a step.
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
       {.name = "padded from the wrong place",
        .record =
            [](const Case& c, auto& ranks) {
              if (!c.pads() || !has_batches(ranks) || c.num_indices() == 1) return;
              // The planted sample must differ from the right one.
              const auto all = issued(ranks);
              auto& last = ranks.back().batches.back().back();
              last = last == all[0] ? all[1] : all[0];
            }}},

      {"uneven shards hold every sample once",
       [](const Case& c, const auto& ranks) {
         if (c.even || c.dispatch || c.drop_last || c.source == Source::kStream) return true;
         auto all = issued(ranks);
         std::sort(all.begin(), all.end());
         return all == source_order(c);
       },
       {.name = "uneven shards are padded", .run = [](Case& c, History&) { c.even = true; }}},

      {"the end is announced with the last batch and no other",
       // `end_of_dataloader` closes the accumulation window and tells gather_for_metrics to drop duplicates. If it
       // is set too early, real samples vanish from the metrics.
       [](const Case&, const auto& ranks) {
         return std::all_of(ranks.begin(), ranks.end(), [](const Epoch& e) {
           for (std::size_t step = 0; step < e.ends.size(); ++step) {
             if (e.ends[step] != (step + 1 == e.ends.size())) return false;
           }
           return true;
         });
       },
       {.name = "the end of the last epoch is still announced",
        .record =
            [](const Case&, auto& ranks) {
              if (ranks.front().ends.size() > 1) ranks.front().ends.front() = true;
            }}},

      {"metrics hold the source once, in the order of issue, on every rank",
       [](const Case& c, const auto& ranks) {
         // Without even_batches the ranks gather batches of different sizes, which gather_for_metrics does not
         // support.
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
       {.name = "duplicates stay in", .run = [](Case&, History& history) { history.keeps_duplicates = true; }}},

      {"every rank reads what it is given, and a stream that it shares completely; each sample once",
       [](const Case& c, const auto& ranks) {
         for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
           std::int64_t expected = 0;
           for (const auto& batch : ranks[rank].batches) expected += static_cast<std::int64_t>(batch.size());
           // A rank that shares a stream reads past the samples of other ranks.
           if (c.source == Source::kStream) expected = c.length;
           // Rank 0 reads for all, except for a tail that its batch sampler never yields.
           const bool cuts = c.drop_last && c.source != Source::kStream;
           const auto all = cuts ? c.num_indices() / c.batch_size * c.batch_size : c.num_indices();
           if (c.dispatch) expected = rank == 0 ? all : 0;
           if (ranks[rank].num_read != expected) return false;
         }
         return true;
       },
       {.name = "every rank reads everything", .run = [](Case& c, History&) { c.dispatch = false; }}},

      {"the loader is inactive after the epoch",
       [](const Case&, const auto& ranks) {
         return std::none_of(ranks.begin(), ranks.end(), [](const Epoch& e) { return e.is_active_after; });
       },
       {.name = "the loader stays active",
        .record = [](const Case&, auto& ranks) { ranks.front().is_active_after = true; }}},
  };
}

TEST(DataLaws, EveryLawHoldsInEveryMode) {
  const auto all = laws();
  // 1,500 cases, because the number of combinations of source, mode and tail is in the hundreds.
  expect_property(1500, [&] {
    const auto c = *any_case();
    for (const auto& ranks : see(c)) {
      for (const auto& law : all) {
        if (!law.holds(c, ranks)) RC_FAIL("broken: " + law.name);
      }
    }
  });
}

// A law that never fails proves nothing.
TEST(DataLaws, EveryLawCatchesItsPlantedBug) {
  for (const auto& law : laws()) {
    expect_property_fails(law.name + ": " + law.bug.name, 200, [&] {
      const auto c = *any_case();
      auto broken = c;
      History history;
      law.bug.run(broken, history);
      for (auto& ranks : see(broken, history)) {
        law.bug.record(c, ranks);
        RC_ASSERT(law.holds(c, ranks));
      }
    });
  }
}

}  // namespace
}  // namespace accel::testing::data_laws
