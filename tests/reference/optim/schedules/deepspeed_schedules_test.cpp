// The rates of DeepSpeed's own schedules, from deepspeed/runtime/lr_schedules.py of version 0.19.8, with groups of
// rates 0.1 and 0.03.
#include "reference/optim/schedules/deepspeed_schedules.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/reference/optim/schedules/scheduled_sgd.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

using Rates = std::vector<std::vector<double>>;  // at the start and after each step, of each group

// Compares the rates of two groups, bit for bit, with numbers that DeepSpeed printed.
template <typename Schedule>
void expect_rates(typename Schedule::Options options, const Rates& expected) {
  auto optimizer = sgd({0.1, 0.03});
  Schedule scheduler(optimizer, std::move(options));
  for (std::size_t step = 0; step < expected.size(); ++step) {
    if (step > 0) scheduler.step();
    for (std::size_t group = 0; group < 2; ++group)
      EXPECT_EQ(rate_of(optimizer, group), expected[step][group]) << "step " << step << ", group " << group;
  }
}

// The numbers are hexadecimal floats, so that every bit is compared. The warm-up is logarithmic by default, and its
// first two rates are both 0.
TEST(WarmupLRTest, RatesEqualDeepSpeeds) {
  expect_rates<WarmupLR>({.warmup_num_steps = 5}, {{0x0.0p+0, 0x0.0p+0},
                                                   {0x0.0p+0, 0x0.0p+0},
                                                   {0x1.60cf6ba6a72c3p-5, 0x1.a75f4dfb2f01cp-7},
                                                   {0x1.179872822ed3ap-4, 0x1.4f83bc9c38312p-6},
                                                   {0x1.60cf6ba6a72c3p-4, 0x1.a75f4dfb2f01cp-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6}});
  expect_rates<WarmupLR>({.warmup_min_lr = 0.01, .warmup_max_lr = 0.2, .warmup_num_steps = 4, .warmup_type = "linear"},
                         {{0x1.47ae147ae147bp-7, 0x1.47ae147ae147bp-7},
                          {0x1.47ae147ae147bp-7, 0x1.47ae147ae147bp-7},
                          {0x1.d70a3d70a3d71p-5, 0x1.d70a3d70a3d71p-5},
                          {0x1.ae147ae147ae1p-4, 0x1.ae147ae147ae1p-4},
                          {0x1.3851eb851eb86p-3, 0x1.3851eb851eb86p-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3},
                          {0x1.999999999999ap-3, 0x1.999999999999ap-3}});
  expect_rates<WarmupLR>({.warmup_num_steps = 1}, {{0x0.0p+0, 0x0.0p+0},
                                                   {0x0.0p+0, 0x0.0p+0},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                                   {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6}});
}

// After the warm-up the rate falls linearly to 0. A given maximum replaces the rates of both groups.
TEST(WarmupDecayLRTest, RatesEqualDeepSpeeds) {
  expect_rates<WarmupDecayLR>({.total_num_steps = 10, .warmup_max_lr = 0.3, .warmup_num_steps = 3},
                              {{0x0.0p+0, 0x0.0p+0},
                               {0x0.0p+0, 0x0.0p+0},
                               {0x1.83a4ab6a63fe1p-3, 0x1.83a4ab6a63fe1p-3},
                               {0x1.3333333333333p-2, 0x1.3333333333333p-2},
                               {0x1.3333333333333p-2, 0x1.3333333333333p-2},
                               {0x1.0750750750750p-2, 0x1.0750750750750p-2},
                               {0x1.b6db6db6db6dbp-3, 0x1.b6db6db6db6dbp-3},
                               {0x1.5f15f15f15f15p-3, 0x1.5f15f15f15f15p-3},
                               {0x1.0750750750750p-3, 0x1.0750750750750p-3},
                               {0x1.5f15f15f15f15p-4, 0x1.5f15f15f15f15p-4},
                               {0x1.5f15f15f15f15p-5, 0x1.5f15f15f15f15p-5},
                               {0x0.0p+0, 0x0.0p+0},
                               {0x0.0p+0, 0x0.0p+0}});
  expect_rates<WarmupDecayLR>(
      {.total_num_steps = 9, .warmup_min_lr = 0.05, .warmup_num_steps = 4, .warmup_type = "linear"},
      {{0x1.999999999999ap-5, 0x1.999999999999ap-5},
       {0x1.999999999999ap-5, 0x1.999999999999ap-5},
       {0x1.353f7ced91688p-5, 0x1.353f7ced91688p-5},
       {0x1.a1cac083126eap-6, 0x1.a1cac083126eap-6},
       {0x1.b22d0e5604188p-7, 0x1.b22d0e5604188p-7},
       {0x1.0624dd2f1aa00p-10, 0x1.0624dd2f1aa00p-10},
       {0x1.61e4f765fd8acp-7, 0x1.61e4f765fd8acp-7},
       {0x1.5182a9930be0fp-6, 0x1.5182a9930be0fp-6},
       {0x1.f212d77318fc5p-6, 0x1.f212d77318fc5p-6},
       {0x1.495182a9930bep-5, 0x1.495182a9930bep-5},
       {0x1.999999999999ap-5, 0x1.999999999999ap-5},
       {0x1.999999999999ap-5, 0x1.999999999999ap-5},
       {0x1.999999999999ap-5, 0x1.999999999999ap-5}});
}

// The factors apply to each group's own rate.
TEST(WarmupCosineLRTest, RatesEqualDeepSpeeds) {
  expect_rates<WarmupCosineLR>({.total_num_steps = 10, .warmup_num_steps = 3},
                               {{0x0.0p+0, 0x0.0p+0},
                                {0x0.0p+0, 0x0.0p+0},
                                {0x1.026dc79c42a97p-4, 0x1.361d55eeb664ep-6},
                                {0x1.999999999999ap-4, 0x1.eb851eb851eb8p-6},
                                {0x1.85520929859c8p-4, 0x1.d32f3e31d3888p-6},
                                {0x1.4c7f989b6acffp-4, 0x1.8eff83edb35fep-6},
                                {0x1.f4c6c37793060p-5, 0x1.2c7742148b6a0p-6},
                                {0x1.3e8168712910ap-5, 0x1.7e34e3bafe13ep-7},
                                {0x1.3491f563ccedcp-6, 0x1.7248c0115c507p-8},
                                {0x1.4520ccad86ed8p-8, 0x1.86275c036eb69p-10},
                                {0x1.4f8b588e368f1p-17, 0x1.92a737110e454p-19},
                                {0x1.4f8b588e368f1p-17, 0x1.92a737110e454p-19},
                                {0x1.4f8b588e368f1p-17, 0x1.92a737110e454p-19}});
  expect_rates<WarmupCosineLR>({.total_num_steps = 8,
                                .warmup_min_ratio = 0.2,
                                .warmup_num_steps = 4,
                                .cos_min_ratio = 0.1,
                                .warmup_type = "linear"},
                               {{0x0.0p+0, 0x0.0p+0},
                                {0x1.47ae147ae147cp-6, 0x1.89374bc6a7efap-8},
                                {0x1.47ae147ae147cp-5, 0x1.89374bc6a7efap-7},
                                {0x1.eb851eb851ebap-5, 0x1.26e978d4fdf3cp-6},
                                {0x1.47ae147ae147cp-4, 0x1.89374bc6a7efap-6},
                                {0x1.639d29fc76773p-4, 0x1.aabc98c88e289p-6},
                                {0x1.c28f5c28f5c2ap-5, 0x1.0e5604189374cp-6},
                                {0x1.7bc8c8b1fd2dbp-6, 0x1.c7bdbda263039p-8},
                                {0x1.47ae147ae147cp-7, 0x1.89374bc6a7efap-9},
                                {0x1.47ae147ae147cp-7, 0x1.89374bc6a7efap-9},
                                {0x1.47ae147ae147cp-7, 0x1.89374bc6a7efap-9},
                                {0x1.47ae147ae147cp-7, 0x1.89374bc6a7efap-9},
                                {0x1.47ae147ae147cp-7, 0x1.89374bc6a7efap-9}});
}

// A resumed training must not warm up again.
TEST(WarmupLRTest, AStateContinuesWhereItWasSaved) {
  auto optimizer = sgd({0.1, 0.03}), other = sgd({0.1, 0.03});
  WarmupCosineLR scheduler(optimizer, {.total_num_steps = 10, .warmup_num_steps = 3}),
      resumed(other, {.total_num_steps = 10, .warmup_num_steps = 3});
  for (int step = 0; step < 5; ++step) scheduler.step();
  resumed.load_state_dict(scheduler.state_dict());
  scheduler.step();
  resumed.step();
  EXPECT_EQ(resumed.get_last_lr(), scheduler.get_last_lr());
}

// The names in the message are those of DeepSpeed's configuration file.
TEST(WarmupLRTest, AnInvalidWarmUpIsAnArgumentError) {
  auto optimizer = sgd({0.1});
  EXPECT_THAT(message_thrown<ArgumentError>([&] { WarmupLR(optimizer, {.warmup_num_steps = -1}); }),
              HasSubstr("warmup_num_steps: expected 0 or more, got -1"));
  EXPECT_THAT(message_thrown<ArgumentError>([&] { WarmupLR(optimizer, {.warmup_type = "cubic"}); }),
              HasSubstr("expected log or linear, got 'cubic'"));
}

}  // namespace
}  // namespace accel::testing
