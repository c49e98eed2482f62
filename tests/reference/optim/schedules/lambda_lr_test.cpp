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

TEST(LambdaLRTest, TheFactorOfEpochZeroHoldsFromTheStart) {
  auto optimizer = sgd({0.5});
  LambdaLR scheduler(optimizer, [](int epoch) { return (epoch + 1) / 4.0; });
  EXPECT_EQ(rate_of(optimizer), 0.125);
  EXPECT_EQ(scheduler.last_epoch(), 0);
}

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

TEST(LambdaLRTest, AnotherNumberOfFactorsThanGroupsIsAnArgumentError) {
  auto optimizer = sgd({1.0, 1.0});
  const std::vector<EpochFactor> one = {[](int) { return 1.0; }};
  EXPECT_THROW(LambdaLR(optimizer, one), ArgumentError);
  EXPECT_THROW(MultiplicativeLR(optimizer, one), ArgumentError);
  EXPECT_THROW(LambdaLR(optimizer, EpochFactor()), ArgumentError);
}

TEST(LambdaLRTest, TheStateHoldsNullForEachFunction) {
  auto optimizer = sgd({1.0, 1.0});
  const LambdaLR scheduler(optimizer, [](int) { return 1.0; });
  EXPECT_EQ(scheduler.state_dict().at("lr_lambdas"), Value(Value::List(2)));
}

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
