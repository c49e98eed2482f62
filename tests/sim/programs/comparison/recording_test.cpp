// The comparison of two recordings: which difference comes first, and how it is described.
#include "sim/programs/comparison/recording.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

using ::testing::HasSubstr;

Observation loss(std::int64_t step, const std::string& value) {
  return {.step = step, .kind = "loss", .value = value, .detail = value};
}
Observation output(std::int64_t step, const std::string& module, const std::string& value) {
  return {.step = step, .kind = "output", .name = module, .value = value, .detail = "Float [2], norm " + value};
}

std::string difference(const Recording& a, const Recording& b) {
  const auto first = first_difference(a, b);
  return first ? describe(*first, "a", "b") : "";
}

TEST(RecordingTest, EqualRecordingsHaveNoDifference) {
  const Recording recording{{loss(0, "1"), loss(1, "2")}, {}};
  EXPECT_EQ(difference(recording, recording), "");
  EXPECT_EQ(difference({}, {}), "");
}

// The detail is for people: equal bits may be printed by machines that round in another way.
TEST(RecordingTest, DetailsAreNotCompared) {
  auto other = output(0, "fc", "1");
  other.detail = "another text";
  EXPECT_EQ(difference({{output(0, "fc", "1")}}, {{other}}), "");
}

TEST(RecordingTest, TheSmallestStepComesFirst) {
  EXPECT_EQ(difference({{loss(0, "1"), loss(1, "2")}, {loss(0, "3"), loss(1, "4")}},
                       {{loss(0, "1"), loss(1, "9")}, {loss(0, "8"), loss(1, "4")}}),
            "rank 1, step 0: the loss is 3 on a, but 8 on b");
}

// Within a step the rank where the difference began is at an earlier place than the ranks to which a collective has
// carried it. At equal places the lowest rank is named.
TEST(RecordingTest, WithinAStepTheEarliestPlaceComesFirst) {
  const Recording a{{output(0, "fc", "1"), loss(0, "1")}, {output(0, "fc", "1"), loss(0, "1")}};
  EXPECT_THAT(difference(a, {{output(0, "fc", "1"), loss(0, "7")}, {output(0, "fc", "2"), loss(0, "7")}}),
              HasSubstr("rank 1, step 0: the output of module fc differs: Float [2], norm 1 on a; Float [2], norm 2"));
  EXPECT_THAT(difference(a, {{output(0, "fc", "1"), loss(0, "7")}, {output(0, "fc", "1"), loss(0, "8")}}),
              HasSubstr("rank 0, step 0: the loss is 1 on a, but 7 on b"));
}

TEST(RecordingTest, ARunThatEndsEarlierIsNamed) {
  EXPECT_EQ(difference({{loss(0, "1")}}, {{loss(0, "1"), output(1, "", "2")}}),
            "rank 0, step 1: b computes the output of the model, but a ends before it");
}

TEST(RecordingTest, OtherOperationsAtOnePlaceAreNamed) {
  EXPECT_EQ(difference({{output(3, "fc", "1")}}, {{loss(3, "1")}}),
            "rank 0, step 3: a computes the output of module fc, but b computes the loss");
  EXPECT_EQ(difference({{loss(3, "1")}}, {{loss(4, "1")}}),
            "rank 0, step 3: a computes the loss of step 3, but b computes the loss of step 4");
}

TEST(RecordingTest, EveryKindIsDescribed) {
  EXPECT_EQ(describe({.kind = "parameter", .name = "fc.weight"}), "parameter fc.weight");
  EXPECT_EQ(describe({.kind = "prepared parameter", .name = "fc.weight"}), "prepared parameter fc.weight");
  EXPECT_EQ(describe({.kind = "parameters"}), "the parameters");
  EXPECT_EQ(describe({.kind = "parameters", .name = "model 1: "}), "the parameters of model 1");
  EXPECT_EQ(describe({.kind = "input gradient", .name = "fc"}), "the input gradient of module fc");
  EXPECT_EQ(describe({.kind = "evaluation output"}), "the evaluation output of the model");
  EXPECT_EQ(describe({.kind = "output", .name = "model 1: "}), "the output of model 1");
  EXPECT_EQ(describe({.kind = "output", .name = "model 1: fc"}), "the output of module fc of model 1");
  EXPECT_EQ(describe({.kind = "generator state"}), "the generator state");
}

TEST(RecordingTest, BitsThatDifferBeyondTheShownDigitsAreExplained) {
  auto a = output(0, "fc", "1"), b = a;
  b.value = "2";
  EXPECT_THAT(difference({{a}}, {{b}}), HasSubstr("the difference is smaller than the digits shown"));
}

// Traces spell the same float in several ways, and list their ranks in any order.
TEST(RecordingTest, TracesAreComparedByValue) {
  const std::vector<std::string> ours{
      R"({"rank":0,"epoch":0,"step":0,"loss":"0x1.8p-1","samples":8,"sync_gradients":true,"lr":1})",
      R"({"rank":1,"epoch":0,"step":0,"loss":"0x1p+0","samples":8,"sync_gradients":true,"lr":1})",
      R"({"rank":0,"parameters_sha256":"aa"})"};
  auto theirs = ours;
  theirs[0] =
      R"({"rank":0,"epoch":0,"step":0,"loss":"0x1.8000000000000p-1","samples":8,"sync_gradients":true,"lr":1.0})";
  std::swap(theirs[0], theirs[1]);
  EXPECT_EQ(difference(recording_of_trace(ours, 2), recording_of_trace(theirs, 2)), "");
  theirs[2] = R"({"rank":0,"parameters_sha256":"bb"})";
  EXPECT_EQ(difference(recording_of_trace(ours, 2), recording_of_trace(theirs, 2)),
            "rank 0, step 0: the SHA-256 of the final parameters differs");
}

// The sign of a NaN differs between builds of LibTorch.
TEST(RecordingTest, HashesOfATraceWithNaNAreLeftOut) {
  const auto trace = [](const std::string& hash) {
    return recording_of_trace(
        {R"({"rank":0,"epoch":0,"step":0,"loss":"nan"})", R"({"rank":0,"parameters_sha256":")" + hash + R"("})"}, 1);
  };
  EXPECT_EQ(difference(trace("aa"), trace("bb")), "");
}

TEST(RecordingTest, AnInvalidLineIsAnError) {
  EXPECT_THROW(recording_of_trace({"not JSON"}, 1), Error);
  EXPECT_THROW(recording_of_trace({R"({"rank":3,"epoch":0,"step":0})"}, 1), ArgumentError);
}

}  // namespace
}  // namespace accel::programs
