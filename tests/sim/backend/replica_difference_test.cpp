// What explains replicas that differ: each test is one mistake of a program, on three simulated ranks.
#include "sim/ranks/replica_difference.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/backend/simulate.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::replica_difference_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The error of a step in which `mistake` gets the parameter, whose gradient is 1 and which is 2 everywhere, and the
// rank.
std::string error_after(const std::function<void(at::Tensor& parameter, int rank)>& mistake) {
  return message_of(sim::rehearse({.num_ranks = 3}, [&](RankContext& rank) {
                      auto parameter = at::full({4}, 2.0).requires_grad_();
                      parameter.mutable_grad() = at::ones({4});
                      mistake(parameter, rank.rank);
                      const auto replicas = std::make_shared<const Replicas>(Replicas{{{"weight", parameter}}});
                      rank.listener->add_replicas(replicas);
                      rank.listener->after_update();
                      rank.world.barrier();
                    }).error);
}

void change(at::Tensor& parameter) {
  const at::NoGradGuard no_grad;
  parameter.add_(1);
}

TEST(ReplicaDifferenceTest, EqualReplicasAreNoError) {
  EXPECT_EQ(error_after([](auto&, int) {}), "");
}

TEST(ReplicaDifferenceTest, AConvertedParameterIsNamed) {
  const auto error = error_after([](at::Tensor& parameter, int rank) {
    if (rank == 1) parameter = parameter.detach().to(at::kDouble).requires_grad_();
  });
  EXPECT_THAT(error, HasSubstr("rank 1 differs from the rest, first in parameter weight"));
  EXPECT_THAT(error, HasSubstr("likely cause: it is converted on rank 1 (Double) only"));
}

TEST(ReplicaDifferenceTest, AFrozenParameterIsNamed) {
  const auto error = error_after([](at::Tensor& parameter, int rank) {
    if (rank == 2) return void(parameter.requires_grad_(false));
    change(parameter);
  });
  EXPECT_THAT(error, HasSubstr("likely cause: it is frozen (requires_grad is false) on rank 2 only"));
}

TEST(ReplicaDifferenceTest, AMissingGradientIsNamed) {
  const auto error = error_after([](at::Tensor& parameter, int rank) {
    if (rank == 0) parameter.mutable_grad().reset();
    if (rank != 0) change(parameter);
  });
  EXPECT_THAT(error, HasSubstr("likely cause: it has no gradient on rank 0 only"));
}

TEST(ReplicaDifferenceTest, GradientsThatWereNotAveragedAreNamed) {
  const auto error = error_after([](at::Tensor& parameter, int rank) {
    parameter.mutable_grad().fill_(rank);
    const at::NoGradGuard no_grad;
    parameter.sub_(parameter.grad());
  });
  EXPECT_THAT(error, HasSubstr("likely cause: its gradients differ, so they were not averaged"));
}

TEST(ReplicaDifferenceTest, AParameterThatWasAssignedIsNamed) {
  const auto error = error_after([](at::Tensor& parameter, int rank) {
    if (rank == 1) change(parameter);
  });
  EXPECT_THAT(error, HasSubstr("likely cause: no gradient explains it, so a rank wrote the parameter itself"));
}

// A sample of a gradient on a device is not known, so nothing is said about gradients.
TEST(ReplicaDifferenceTest, UnknownGradientsExplainNothing) {
  const ParameterState known{.gradient = ParameterState::Gradient::kPresent, .gradient_hash = 7};
  auto unknown = known;
  unknown.gradient_hash = 0;
  EXPECT_THAT(sim::likely_cause({known, unknown}, {0, 1}), IsEmpty());
}

}  // namespace
}  // namespace accel::testing::replica_difference_test
