// The time of a pipeline by its table, and beside the formula.
#include "sim/predict/pipeline_time.hpp"

#include <gmock/gmock.h>

#include "reference/pipeline/schedules/schedule_check.hpp"
#include "tests/support/property.hpp"

namespace accel::predict::pipeline_time_test {
namespace {

using accel::testing::expect_property;
using accel::testing::pick;

PipelineSeconds pipeline_time(const PipelineInput& input) { return Pipeline(input).seconds(); }

PipelineInput equal_stages(const std::string& schedule, int ranks, int chunks, int micro_batches) {
  PipelineInput input{.schedule = schedule, .ranks = ranks, .micro_batches = micro_batches};
  input.stages.assign(static_cast<std::size_t>(ranks) * chunks,
                      {.forward = 1, .backward_input = 1, .backward_weight = 1});
  return input;
}

// The same plan, timed by the checker of schedules.
TEST(PipelineTimeTest, WithoutMessagesItIsTheTimeOfTheSchedulesProof) {
  expect_property(60, [] {
    const auto& kinds = pipeline::schedule_kinds();
    const auto& kind = kinds[pick<std::size_t>(0, kinds.size())];
    const int ranks = pick(2, 6);
    const int micro_batches = 2 * ranks * pick(1, 4);
    const auto input = equal_stages(std::string(kind.name), ranks, kind.default_stages_per_rank, micro_batches);
    const auto check = pipeline::check_schedule(
        pipeline::make_schedule(
            kind.name,
            {.stages = static_cast<int>(input.stages.size()), .ranks = ranks, .micro_batches = micro_batches}),
        {});
    const auto time = pipeline_time(input);
    RC_ASSERT(Pipeline(input).has_table());
    RC_ASSERT(std::abs(time.bubble() / time.seconds - check.times.bubble) < 1e-9);
  });
}

TEST(PipelineTimeTest, ASlowStageSetsThePace) {
  auto input = equal_stages("1f1b", 4, 1, 64);
  input.stages[2].forward = 2;
  const auto time = pipeline_time(input);
  EXPECT_GT(time.seconds, 64 * 4);
  EXPECT_LT(time.seconds, 64 * 4 + 4 * 4);
}

TEST(PipelineTimeTest, MessagesDelayTheNextStage) {
  auto input = equal_stages("1f1b", 4, 1, 8);
  const double without = pipeline_time(input).seconds;
  input.message_seconds = 0.1;
  input.message_visible = 0;
  // At least to the last stage and back, at most once per micro-batch and direction.
  EXPECT_GT(pipeline_time(input).seconds, without + 5.9 * 0.1);
  EXPECT_LT(pipeline_time(input).seconds, without + 16.1 * 0.1);
  input.message_visible = 1;
  EXPECT_GT(pipeline_time(input).seconds, without + 8 * 0.1);
}

TEST(PipelineTimeTest, TheFormulaIsCloseToTheTable) {
  expect_property(60, [] {
    const int ranks = pick(2, 9), chunks = pick(1, 4);
    auto input = equal_stages(chunks > 1 ? "interleaved_1f1b" : "1f1b", ranks, chunks, ranks * pick(2, 6));
    const double table = pipeline_time(input).seconds;
    input.has_table = false;
    RC_ASSERT(!Pipeline(input).has_table());
    RC_ASSERT(std::abs(pipeline_time(input).seconds / table - 1) < 0.06);
  });
}

// (p - 1) (F + B - W) of ZB-H1; next to nothing of a schedule that holds twice the activations.
TEST(PipelineTimeTest, SchedulesThatSplitTheBackwardHaveASmallerBubble) {
  EXPECT_NEAR(pipeline_time(equal_stages("zb_h1", 4, 1, 16)).bubble(), 3, 1e-9);
  EXPECT_LT(pipeline_time(equal_stages("zb_h2", 4, 1, 16)).bubble(), 0.5);
  EXPECT_LT(pipeline_time(equal_stages("dualpipe", 4, 1, 16)).bubble(),
            pipeline_time(equal_stages("1f1b", 4, 1, 16)).bubble() / 2);
}

TEST(PipelineTimeTest, LayersAreDividedOverRanksFirst) {
  using ::testing::ElementsAre;
  EXPECT_THAT(layers_of_stages(8, 4, 1), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(layers_of_stages(9, 4, 1), ElementsAre(2, 3, 2, 2));
  EXPECT_THAT(layers_of_stages(11, 4, 1), ElementsAre(3, 3, 3, 2));
  EXPECT_THAT(layers_of_stages(5, 2, 2), ElementsAre(2, 1, 1, 1));
  EXPECT_THAT(layers_of_stages(7, 1, 1), ElementsAre(7));
}

// Rank r of 1F1B holds p - r micro-batches.
TEST(PipelineTimeTest, TheFirstRankHoldsTheMostActivations) {
  const auto input = equal_stages("1f1b", 4, 1, 16);
  EXPECT_DOUBLE_EQ(Pipeline(input).peak_bytes({1, 1, 1, 1}, {0, 0, 0, 0}), 4);
  EXPECT_DOUBLE_EQ(Pipeline(input).peak_bytes({1, 1, 1, 1}, {0, 0, 0, 10}), 11);
  EXPECT_DOUBLE_EQ(Pipeline(equal_stages("gpipe", 4, 1, 16)).peak_bytes({1, 1, 1, 1}, {0, 0, 0, 0}), 16);
}

}  // namespace
}  // namespace accel::predict::pipeline_time_test
