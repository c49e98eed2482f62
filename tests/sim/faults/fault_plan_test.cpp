// Plans of faults: which values are drawn from the seed, that they are in range and evenly distributed, and that
// they never change. A plan is a pure function of the file, the number of ranks and the seed.
#include "sim/faults/fault_plan.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

#include "reference/core/errors.hpp"
#include "tests/sim/faults/any_faults.hpp"
#include "tests/support/property.hpp"

namespace accel::sim {
namespace {

using enum FaultRule::Parameter;

using ::testing::ElementsAre;

// Returns faults of all kinds with nothing set but the seed.
std::vector<Fault> bare_faults(std::uint64_t seed) {
  std::vector<Fault> faults;
  for (std::size_t kind = 0; kind < kFaultRules.size(); ++kind) {
    faults.push_back({.kind = static_cast<FaultKind>(kind), .seed = seed, .stream = static_cast<std::uint32_t>(kind)});
  }
  return faults;
}

Fault planned(FaultKind kind, std::uint64_t seed, int num_ranks = 8) {
  return plan_faults({{.kind = kind, .seed = seed}}, num_ranks).at(0);
}

bool is_rank(int rank, int num_ranks) { return rank >= 0 && rank < num_ranks; }

// Checks one parameter of a planned fault, by the form of its values.
struct ExpectWhole {
  const Fault& fault;
  const FaultParameter& parameter;
  const bool is_taken = rule_of(fault.kind).has(parameter.parameter);

  void operator()(const NumberForm& form) const {
    const bool has_none = fault.away && form.member == &Fault::seconds;
    RC_ASSERT((fault.*form.member).has_value() == (is_taken && !has_none));
  }
  void operator()(const CountForm& form) const {
    if (form.draw) RC_ASSERT((fault.*form.member).has_value() == is_taken);
    RC_ASSERT((fault.*form.member).value_or(0) >= 0);
  }
  template <typename Enum>
  void operator()(const ChoiceForm<Enum>& form) const {
    RC_ASSERT((fault.*form.member).has_value() == is_taken);
    if (is_taken) RC_ASSERT(static_cast<std::size_t>(*(fault.*form.member)) < form.names.size());
  }
  void operator()(const auto& /*form*/) const {}
};

// A parameter is set exactly if the kind accepts it.
void expect_complete(const Fault& fault) {
  const auto& rule = rule_of(fault.kind);
  RC_ASSERT(fault.rank.has_value() == (rule.has(kRank) && (!rule.every_rank || fault.rank)));
  RC_ASSERT(fault.link.has_value() == rule.has(kLink));
  RC_ASSERT(fault.ranks.has_value() == rule.has(kRanks));
  RC_ASSERT(fault.when.has_value() == rule.has(kStep));
  for (const auto& parameter : kFaultParameters) std::visit(ExpectWhole{fault, parameter}, parameter.form);
}

void expect_in_range(const Fault& fault, int num_ranks) {
  if (fault.rank) RC_ASSERT(is_rank(*fault.rank, num_ranks));
  if (fault.link)
    RC_ASSERT(is_rank(fault.link->from, num_ranks) && is_rank(fault.link->to, num_ranks) &&
              fault.link->from != fault.link->to);
  // A side of a partition is sorted, not empty, and does not include all ranks.
  if (fault.ranks) {
    const std::set<int> side(fault.ranks->begin(), fault.ranks->end());
    RC_ASSERT(std::vector<int>(side.begin(), side.end()) == *fault.ranks);
    RC_ASSERT(!side.empty() && std::ssize(side) < num_ranks && is_rank(*side.begin(), num_ranks) &&
              is_rank(*side.rbegin(), num_ranks));
  }
}

// A plan fills in everything that the file leaves open. The engine relies on complete values and does not check
// them.
TEST(FaultPlanTest, EveryPlanIsCompleteAndInRange) {
  testing::expect_property(1000, [] {
    // Four ranks are the least for which every kind makes sense; 4096 is the simulator's maximum.
    const auto num_ranks = testing::pick(4, 4097);
    for (const auto& fault : plan_faults(testing::any_faults(num_ranks), num_ranks)) {
      expect_complete(fault);
      expect_in_range(fault, num_ranks);
    }
    for (const auto& fault : plan_faults(bare_faults(*rc::gen::arbitrary<std::uint64_t>()), num_ranks)) {
      expect_complete(fault);
      expect_in_range(fault, num_ranks);
      // Drawn steps are 1 to 8, so that short runs reach them too.
      if (fault.when) RC_ASSERT(fault.when->number >= 1 && fault.when->number <= 8);
    }
  });
}

// Drawing must only fill gaps: what the user wrote is never changed.
TEST(FaultPlanTest, GivenValuesAreKept) {
  testing::expect_property(1000, [] {
    const auto num_ranks = testing::pick(4, 65);
    const auto faults = testing::any_faults(num_ranks);
    const auto plan = plan_faults(faults, num_ranks);
    RC_ASSERT(plan.size() == faults.size());
    for (std::size_t i = 0; i < plan.size(); ++i) {
      auto emptied = plan[i];  // without the values that the file left out
      if (!faults[i].rank || *faults[i].rank == kAnyRank) emptied.rank = faults[i].rank;
      const auto empty = [](auto& value, const auto& given) {
        if (!given) value.reset();
      };
      empty(emptied.link, faults[i].link), empty(emptied.ranks, faults[i].ranks), empty(emptied.when, faults[i].when);
      empty(emptied.seconds, faults[i].seconds), empty(emptied.factor, faults[i].factor),
          empty(emptied.probability, faults[i].probability);
      empty(emptied.bit, faults[i].bit), empty(emptied.after_bytes, faults[i].after_bytes);
      empty(emptied.what, faults[i].what), empty(emptied.value, faults[i].value);
      RC_ASSERT(emptied == faults[i]);
    }
    // Planning is idempotent, because a plan that was written to a file is planned again when it is read.
    RC_ASSERT(plan_faults(plan, num_ranks) == plan);
  });
}

// Otherwise a failure could not be repeated, or a search over seeds would try the same plan again.
TEST(FaultPlanTest, EqualSeedsGiveEqualPlansAndOtherSeedsOtherPlans) {
  std::set<std::string> plans;
  for (std::uint64_t number = 0; number < 100; ++number) {
    // Seeds that differ in their high words only must differ as well.
    const auto seed = number % 2 == 0 ? number : number << 32;
    const auto plan = plan_faults(bare_faults(seed), 8);
    EXPECT_EQ(plan, plan_faults(bare_faults(seed), 8));
    std::string text;
    for (const auto& fault : plan) text += describe(fault) + "\n";
    plans.insert(text);
  }
  EXPECT_EQ(plans.size(), 100u);
}

// Fault files are kept with the runs that they broke, so a seed must keep its meaning in all future versions.
TEST(FaultPlanTest, ASeedMeansTheSameForever) {
  std::vector<std::string> texts;
  for (const auto& fault : plan_faults(bare_faults(7), 8)) texts.push_back(describe(fault));
  EXPECT_THAT(
      texts,
      ElementsAre("rank_crash_before_collective on rank 6 at collective 7",
                  "rank_crash_during_collective on rank 3 at collective 4",
                  "rank_crash_before_optimizer_step on rank 6 at step 6", "rank_hang on rank 3 at step 1",
                  "rank_pause on rank 6 at step 2, seconds 0.5", "slow_rank on rank 6, factor 4",
                  "jitter on every rank, seconds 0.002", "rank_restart on rank 4 at step 5",
                  "hook_exception on rank 1 at step 6", "message_delay on link 7 -> 6, seconds 0.05, probability 0.1",
                  "message_loss on link 5 -> 4 at collective 4", "connection_reset on link 3 -> 2 at collective 2",
                  "partition of ranks 0, 2, 5, 6 from the others at step 1", "slow_link on link 1 -> 0, factor 10",
                  "bit_flip on rank 6 at step 7, bit 3657160167", "store_slow, seconds 0.05", "torn_write on rank 7",
                  "disk_full on rank 2, after_bytes 2532", "wrong_call on rank 3 at step 8, what order",
                  "nan_gradient on rank 0 at step 5, value nan", "rank_leave on rank 1 at step 1, seconds 0.1",
                  "rank_join on rank 0 at step 3, seconds 0.1"));
}

// When a failure is reduced, faults are removed one by one. The remaining ones must keep their values.
TEST(FaultPlanTest, AFaultKeepsItsDrawsWhateverFaultsAreAdded) {
  testing::expect_property(500, [] {
    const auto num_ranks = testing::pick(4, 65);
    auto faults = testing::any_faults(num_ranks);
    const auto plan = plan_faults(faults, num_ranks);
    auto added = testing::any_fault(num_ranks);
    added.stream = 1'000'000;
    const auto place = testing::pick<std::ptrdiff_t>(0, std::ssize(faults) + 1);
    faults.insert(faults.begin() + place, added);
    auto longer = plan_faults(faults, num_ranks);
    longer.erase(longer.begin() + place);
    RC_ASSERT(longer == plan);
  });
}

// If both drew from the same stream, they would always hit the same rank.
TEST(FaultPlanTest, TwoFaultsOfOneKindDrawIndependently) {
  std::int64_t num_equal_ranks = 0, num_equal_hits = 0;
  constexpr int kSeeds = 4000;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    const auto plan = plan_faults({{.kind = FaultKind::kRankHang, .seed = seed, .stream = 0},
                                   {.kind = FaultKind::kRankHang, .seed = seed, .stream = 1}},
                                  8);
    num_equal_ranks += int(plan[0].rank == plan[1].rank);
    const Fault delay{.kind = FaultKind::kMessageDelay, .probability = 0.5, .seed = seed, .stream = 0};
    auto other = delay;
    other.stream = 1;
    num_equal_hits += int(strikes(delay, 3, 5) == strikes(other, 3, 5));
  }
  // Binomial: 500 +- 21 and 2000 +- 32; the limits are five standard deviations.
  EXPECT_NEAR(static_cast<double>(num_equal_ranks), kSeeds / 8.0, 105);
  EXPECT_NEAR(static_cast<double>(num_equal_hits), kSeeds / 2.0, 160);
}

// Returns Pearson's chi-square of the counts, for a uniform distribution over `num_values` values.
double chi_square(const std::map<std::int64_t, int>& counts, std::int64_t num_values) {
  int total = 0;
  for (const auto& [value, count] : counts) total += count;
  const double mean = static_cast<double>(total) / static_cast<double>(num_values);
  double sum = mean * static_cast<double>(num_values - std::ssize(counts));  // values that never occurred
  for (const auto& [value, count] : counts) sum += (count - mean) * (count - mean) / mean;
  return sum;
}

// A chi-square test. A bias, e.g. from a modulo, would leave some ranks rarely tested.
TEST(FaultPlanTest, AnySelectsRanksUniformly) {
  for (const int num_ranks : {4, 7, 64}) {
    std::map<std::int64_t, int> ranks, senders, steps;
    for (std::uint64_t seed = 0; seed < 20000; ++seed) {
      ++ranks[*planned(FaultKind::kRankHang, seed, num_ranks).rank];
      ++senders[planned(FaultKind::kSlowLink, seed, num_ranks).link->from];
      ++steps[planned(FaultKind::kRankHang, seed, num_ranks).when->number];
    }
    // The mean is n - 1 and the variance 2 (n - 1); the limit is five standard deviations.
    const auto limit = [](int n) { return n - 1 + 5 * std::sqrt(2.0 * (n - 1)); };
    EXPECT_LT(chi_square(ranks, num_ranks), limit(num_ranks));
    EXPECT_LT(chi_square(senders, num_ranks), limit(num_ranks));
    EXPECT_LT(chi_square(steps, 8), limit(8));
  }
}

// "any" means one rank that is drawn; leaving the rank out means all of them.
TEST(FaultPlanTest, JitterOfAnyIsOneRankAndWithoutARankAllRanks) {
  EXPECT_EQ(planned(FaultKind::kJitter, 1).rank, std::nullopt);
  std::set<int> ranks;
  for (std::uint64_t seed = 0; seed < 100; ++seed)
    ranks.insert(plan_faults({{.kind = FaultKind::kJitter, .rank = kAnyRank, .seed = seed}}, 4)[0].rank.value());
  EXPECT_THAT(ranks, ElementsAre(0, 1, 2, 3));
}

// Guards against an upper bound that is off by one, so that the last value is never drawn.
TEST(FaultPlanTest, EveryWrongCallAndEverySizeOfASideIsDrawn) {
  std::set<WrongCall> calls;
  std::set<std::size_t> sizes;
  std::set<int> members;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    calls.insert(*planned(FaultKind::kWrongCall, seed).what);
    const auto side = *planned(FaultKind::kPartition, seed).ranks;
    sizes.insert(side.size());
    members.insert(side.begin(), side.end());
  }
  EXPECT_EQ(calls.size(), 6u);
  EXPECT_THAT(sizes, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(members.size(), 8u);
}

TEST(FaultPlanTest, ALinkNeedsTwoRanks) {
  for (const auto kind : {FaultKind::kSlowLink, FaultKind::kPartition})
    EXPECT_THROW(planned(kind, 0, 1), ArgumentError);
  EXPECT_EQ(planned(FaultKind::kRankHang, 0, 1).rank, 0);
}

// The limits 0 and 1 must be exact, everything between statistically right.
TEST(FaultPlanTest, AFaultOccursWithItsProbability) {
  const auto share = [](double probability, int rank) {
    const Fault fault{.kind = FaultKind::kMessageDelay, .probability = probability, .seed = 5};
    constexpr int kHits = 20000;
    int count = 0;
    for (std::uint64_t hit = 0; hit < kHits; ++hit) count += int(strikes(fault, rank, hit));
    return static_cast<double>(count) / kHits;
  };
  for (const int rank : {0, 1, 4095}) {
    EXPECT_EQ(share(0, rank), 0);
    EXPECT_NEAR(share(0.25, rank), 0.25, 0.0153);  // five standard deviations of 0.0031
    EXPECT_EQ(share(1, rank), 1);
  }
  EXPECT_TRUE(strikes({.kind = FaultKind::kRankHang}, 0, 0));
}

// 160 is five standard deviations of a binomial distribution with 4,000 trials.
TEST(FaultPlanTest, RanksAndHitsAreIndependent) {
  const Fault fault{.kind = FaultKind::kMessageDelay, .probability = 0.5, .seed = 5};
  int equal_ranks = 0, equal_hits = 0;
  constexpr int kHits = 4000;
  for (std::uint64_t hit = 0; hit < kHits; ++hit) {
    equal_ranks += int(strikes(fault, 0, hit) == strikes(fault, 1, hit));
    // Hits that differ by 2^32 detect a counter that is truncated to 32 bits.
    equal_hits += int(strikes(fault, 0, hit) == strikes(fault, 0, hit + (1ULL << 32)));
  }
  EXPECT_NEAR(equal_ranks, kHits / 2, 160);
  EXPECT_NEAR(equal_hits, kHits / 2, 160);
}

// The documented distribution: uniform.
TEST(FaultPlanTest, JitterIsBetweenZeroAndTwiceItsMean) {
  const Fault fault{.kind = FaultKind::kJitter, .seconds = 0.01, .seed = 11};
  constexpr int kHits = 20000;
  for (const int rank : {0, 63}) {
    double sum = 0, least = 1, most = 0;
    for (std::uint64_t hit = 0; hit < kHits; ++hit) {
      const auto seconds = jitter_seconds(fault, rank, hit);
      sum += seconds, least = std::min(least, seconds), most = std::max(most, seconds);
    }
    EXPECT_NEAR(sum / kHits, 0.01, 0.0002041);  // five standard deviations of 0.02 / sqrt(12 kHits)
    EXPECT_GE(least, 0);
    EXPECT_LT(most, 0.02);
  }
}

// A torn write may keep nothing, everything, or any part in between.
TEST(FaultPlanTest, DrawnBytesCoverEveryPrefixOfAWrite) {
  std::set<std::int64_t> kept;
  for (std::uint64_t seed = 0; seed < 200; ++seed)
    kept.insert(drawn_bytes({.kind = FaultKind::kTornWrite, .seed = seed}, 4));
  EXPECT_THAT(kept, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_EQ(drawn_bytes({.kind = FaultKind::kTornWrite}, 0), 0);
}

}  // namespace
}  // namespace accel::sim
