// Tests of LambdaLR and MultiplicativeLR, whose factor is a function of the epoch. PyTorch computes the same rates;
// the numbers here are powers of two, so that they can be checked by hand and are exact.
#include "reference/optim/schedules/lambda_lr.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;

TEST(LambdaLRTest, TheRateIsTheInitialOneTimesTheFactorOfTheEpoch) {
  auto optimizer = sgd({0.5});
  LambdaLR scheduler(optimizer, [](int epoch) { return 1.0 - epoch / 4.0; });
  EXPECT_THAT(rates_over(scheduler, 4), ElementsAre(0.5, 0.375, 0.25, 0.125, 0.0));
  EXPECT_EQ(scheduler.last_epoch(), 4);
}

// The constructor already sets the rate, as in PyTorch.
TEST(LambdaLRTest, TheFactorOfEpochZeroHoldsFromTheStart) {
  auto optimizer = sgd({0.5});
  LambdaLR scheduler(optimizer, [](int epoch) { return (epoch + 1) / 4.0; });
  EXPECT_EQ(rate_of(optimizer), 0.125);
  EXPECT_EQ(scheduler.last_epoch(), 0);
}

// A common setup: a smaller rate for pretrained layers.
TEST(LambdaLRTest, EachGroupKeepsItsOwnInitialRate) {
  auto optimizer = sgd({1.0, 0.25});
  LambdaLR scheduler(optimizer, [](int epoch) { return epoch == 0 ? 1.0 : 0.5; });
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5, 0.125));
  EXPECT_EQ(rate_of(optimizer, 1), 0.125);
}

TEST(LambdaLRTest, EachGroupMayHaveItsOwnFactor) {
  auto optimizer = sgd({1.0, 1.0});
  LambdaLR scheduler(optimizer, {[](int epoch) { return 1.0 / (epoch + 1); }, [](int) { return 2.0; }});
  scheduler.step();
  EXPECT_THAT(scheduler.get_last_lr(), ElementsAre(0.5, 2.0));
}

// With fewer factors than groups, some groups would keep their rate without notice. An empty function has to be
// found here too, not at the first step.
TEST(LambdaLRTest, AnotherNumberOfFactorsThanGroupsIsAnArgumentError) {
  auto optimizer = sgd({1.0, 1.0});
  const std::vector<EpochFactor> one = {[](int) { return 1.0; }};
  EXPECT_THROW(LambdaLR(optimizer, one), ArgumentError);
  EXPECT_THROW(MultiplicativeLR(optimizer, one), ArgumentError);
  EXPECT_THROW(LambdaLR(optimizer, EpochFactor()), ArgumentError);
}

// A function cannot be written to a checkpoint. Python stores null for it, so its files load here and ours load
// there.
TEST(LambdaLRTest, TheStateHoldsNullForEachFunction) {
  auto optimizer = sgd({1.0, 1.0});
  const LambdaLR scheduler(optimizer, [](int) { return 1.0; });
  EXPECT_EQ(scheduler.state_dict().at("lr_lambdas"), Value(Value::List(2)));
}

// The rate is multiplied as it is at the time, unlike LambdaLR, which multiplies the initial rate: a rate that the
// program sets in between is therefore kept. Epoch 0 leaves the rate unchanged.
TEST(MultiplicativeLRTest, TheCurrentRateIsMultipliedFromEpochOneOn) {
  auto optimizer = sgd({8.0});
  MultiplicativeLR scheduler(optimizer, [](int) { return 0.5; });
  EXPECT_THAT(rates_over(scheduler, 2), ElementsAre(8, 4, 2));
  set_rate(optimizer, 100);
  scheduler.step();
  EXPECT_EQ(rate_of(optimizer), 50);
}

}  // namespace
}  // namespace accel::testing
