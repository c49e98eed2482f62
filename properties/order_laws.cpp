// The order of a loader's samples is a function of seed and epoch, and equal on all ranks. If it depended on
// anything else (draws in between, earlier epochs, the rank), resumed and elastic runs would read samples twice or
// never.
#include <map>
#include <set>

#include "properties/gen/read_epochs.hpp"

namespace accel::testing::order_laws {
namespace {

using namespace read_epochs;

// The batches of each rank in one epoch.
std::vector<Batches> batches_of(const Seen& seen, std::size_t epoch) {
  std::vector<Batches> batches;
  for (const auto& rank : seen.at(epoch)) batches.push_back(rank.batches);
  return batches;
}

Case shuffled_case() {
  auto c = *any_case();
  c.source = Source::kDataset;
  c.shuffle = true;
  c.length += 20;  // two orders of 20 or more samples are not equal by chance
  return c;
}

// Returns the order of an epoch, either of a loader that was set to that epoch, or of one that reached it after
// earlier epochs in which one rank drew extra random numbers.
using Order = std::function<std::vector<Batches>(const Case&, int epoch, bool has_history)>;

// The order of an epoch, read after all earlier epochs or started at this one.
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

TEST(OrderLaws, WrongEpochsAndUnusedSeedsAreCaught) {
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
  // Each rank has its own seed, which is the hard case: the order must come from rank 0.
  c.device_specific_seeds = true;
  c.dispatch = false;
  c.seedable = false;
  if (c.ranks == 1) return;
  RC_LOG(describe(c));
  auto seen = see(c), drawing = see(c, {.draws_between = true});
  if (draws_from_the_ranks_generator) {  // plants the bug: every rank takes its shard of its own order
    for (int rank = 0; rank < c.ranks; ++rank) {
      auto alone = c;
      alone.seed += rank;
      alone.device_specific_seeds = false;
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
TEST(OrderLaws, AnOrderPerRankIsCaught) {
  expect_property_fails("an order per rank", 50, [] { check_ranks_agree(true); });
}

}  // namespace
}  // namespace accel::testing::order_laws
