// Tests of GradScaler, which multiplies the loss so that float16 gradients do not become zero. One weight and SGD
// make each effect visible: a step of the expected size, a skipped step, and the course of the scale. PyTorch's
// GradScaler behaves in the same way.
#include "reference/precision/grad_scaler.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

class GradScalerTest : public ::testing::Test {
 protected:
  // One iteration whose gradient before scaling is `gradient`. Returns whether the optimizer made its step.
  bool iterate(GradScaler& scaler, double gradient) {
    weight_.mutable_grad() = at::Tensor();
    scaler.scale((weight_ * gradient).sum()).backward();
    const bool stepped = scaler.step(sgd_);
    scaler.update();
    return stepped;
  }

  at::Tensor weight_ = torch::full({1}, 10.0).requires_grad_();
  torch::optim::SGD sgd_ = torch::optim::SGD({weight_}, /*lr=*/1.0);
};

TEST_F(GradScalerTest, AStepUsesTheGradientWithoutTheScale) {
  GradScaler scaler;
  EXPECT_TRUE(iterate(scaler, 2));
  EXPECT_EQ(weight_.item<float>(), 8);
  EXPECT_EQ(scaler.get_scale(), 65536);
}

// The second gradient, 1e38, is finite in float32 but overflows once it is multiplied by the scale.
TEST_F(GradScalerTest, AnOverflowSkipsTheStepAndLowersTheScale) {
  GradScaler scaler({.init_scale = 1024});
  EXPECT_FALSE(iterate(scaler, kNan));
  EXPECT_EQ(weight_.item<float>(), 10);
  EXPECT_EQ(scaler.get_scale(), 512);
  EXPECT_FALSE(iterate(scaler, 1e38));  // finite, but infinite once it is scaled
  EXPECT_EQ(scaler.get_scale(), 256);
}

// Growing by 3 and shrinking by 4 makes the scale tell how often each of the two has happened.
TEST_F(GradScalerTest, GoodStepsInARowRaiseTheScaleAndAnOverflowRestartsTheCount) {
  GradScaler scaler({.init_scale = 4, .growth_factor = 3, .backoff_factor = 0.25, .growth_interval = 2});
  std::vector<double> scales;
  for (const double gradient : {0.01, kNan, 0.01, 0.01, 0.01, kNan, 0.01}) {
    iterate(scaler, gradient);
    scales.push_back(scaler.get_scale());
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(4, 1, 1, 3, 3, 0.75, 0.75));
}

// Unscaling twice would divide the gradient by the scale twice and train with almost no gradient.
TEST_F(GradScalerTest, GradientsAreUnscaledOnceForEachStep) {
  GradScaler scaler;
  scaler.scale(weight_.sum()).backward();
  scaler.unscale_(sgd_);
  EXPECT_EQ(weight_.grad().item<float>(), 1);
  EXPECT_THAT(message_of<StateError>([&] { scaler.unscale_(sgd_); }), HasSubstr("since the last update"));
  EXPECT_TRUE(scaler.step(sgd_));
  EXPECT_EQ(weight_.item<float>(), 9);
  EXPECT_THROW(scaler.step(sgd_), StateError);
  EXPECT_THROW(scaler.unscale_(sgd_), StateError);
  scaler.update();
  EXPECT_FALSE(scaler.was_stepped(sgd_));
}

TEST_F(GradScalerTest, CallsInTheWrongOrderAreStateErrors) {
  GradScaler scaler;
  EXPECT_THROW(scaler.unscale_(sgd_), StateError);
  EXPECT_THROW(scaler.step(sgd_), StateError);
  EXPECT_THROW(scaler.update(), StateError);
  scaler.scale(at::ones({}));
  EXPECT_THAT(message_of<StateError>([&] { scaler.step(sgd_); }),
              HasSubstr("no parameter of the optimizer has a gradient"));
  EXPECT_THROW(scaler.update(), StateError);
}

// Unscaled float16 gradients would underflow, which is what the scale is there to avoid. PyTorch rejects them too.
TEST_F(GradScalerTest, GradientsInHalfPrecisionAreAnError) {
  GradScaler scaler;
  const auto half = torch::ones({2}, at::kHalf).requires_grad_();
  half.mutable_grad() = at::ones({2}, at::kHalf);
  torch::optim::SGD sgd({half}, 1.0);
  scaler.scale(at::ones({}));
  EXPECT_THROW(scaler.unscale_(sgd), ArgumentError);
}

// Programs keep the same code for full precision and switch the scaler off.
TEST_F(GradScalerTest, AScalerThatIsOffChangesNothing) {
  GradScaler scaler({.enabled = false});
  EXPECT_TRUE(iterate(scaler, 2));
  EXPECT_EQ(weight_.item<float>(), 8);
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_EQ(scaler.state_dict(), Value(Value::Dict{}));
}

// The count of good steps belongs to the state: with a growth interval of 3, a lost count would delay the next
// growth.
TEST_F(GradScalerTest, AStateContinuesWhereItWasSaved) {
  const GradScalerKwargs options{.init_scale = 8, .growth_interval = 3};
  GradScaler whole(options), first(options);
  for (int step = 0; step < 2; ++step) {
    iterate(whole, 0.5);
    iterate(first, 0.5);
  }
  GradScaler second;
  second.load_state_dict(first.state_dict());
  EXPECT_EQ(second.state_dict(), first.state_dict());
  iterate(whole, 0.5);
  iterate(second, 0.5);
  EXPECT_EQ(second.state_dict(), whole.state_dict());
  EXPECT_EQ(second.get_scale(), 16);
  // A scaler that has made a step has tensors already, which must change too.
  GradScaler used;
  iterate(used, 0.5);
  used.load_state_dict(first.state_dict());
  EXPECT_EQ(used.state_dict(), first.state_dict());
}

TEST_F(GradScalerTest, AnInvalidStateIsAnErrorThatNamesEveryEntry) {
  GradScaler scaler;
  const Value bad = Value::Dict{
      {"scale", 1.0}, {"growth_factor", 0.5}, {"backoff_factor", 2.0}, {"growth_interval", 0}, {"_growth_tracker", 1}};
  EXPECT_THAT(message_of<CheckpointError>([&] { scaler.load_state_dict(bad); }),
              AllOf(HasSubstr("growth_factor"), HasSubstr("backoff_factor"), HasSubstr("growth_interval")));
  EXPECT_THAT(message_of<CheckpointError>([&] { scaler.load_state_dict(Value::Dict{}); }),
              AllOf(HasSubstr("scale: missing"), HasSubstr("_growth_tracker: missing")));
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
}

TEST_F(GradScalerTest, InvalidOptionsAreReportedTogether) {
  const GradScalerKwargs bad{.init_scale = -1, .growth_factor = 1, .backoff_factor = 1, .growth_interval = 0};
  EXPECT_THAT(message_of<ArgumentError>([&] { GradScaler scaler(bad); }),
              AllOf(HasSubstr("init_scale"), HasSubstr("growth_factor"), HasSubstr("backoff_factor"),
                    HasSubstr("growth_interval")));
}

}  // namespace
}  // namespace accel
