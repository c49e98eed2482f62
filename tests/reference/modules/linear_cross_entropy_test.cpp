#include "reference/modules/linear_cross_entropy.hpp"

#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "reference/core/errors.hpp"
#include "reference/precision/autocast.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using ::testing::HasSubstr;

struct Problem {
  at::Tensor hidden = torch::randn({2, 5, 8}, torch::requires_grad()),
             weight = torch::randn({11, 8}, torch::requires_grad()), targets = torch::randint(0, 11, {2, 5});
  Problem() { targets[1][2] = -100; }

  at::Tensor separate(int64_t reduction) const {
    return at::cross_entropy_loss(at::linear(hidden, weight).flatten(0, -2).to(at::kFloat), targets.flatten(), {},
                                  reduction);
  }
};

struct Result {
  at::Tensor loss, of_hidden, of_weight;
};

Result differentiated(const Problem& problem, const at::Tensor& loss) {
  const auto gradients = torch::autograd::grad({loss * 0.5}, {problem.hidden, problem.weight});
  return {loss.detach(), gradients[0], gradients[1]};
}

void expect_equal(const Result& a, const Result& b) {
  EXPECT_TRUE(a.loss.equal(b.loss));
  EXPECT_TRUE(a.of_hidden.equal(b.of_hidden));
  EXPECT_TRUE(a.of_weight.equal(b.of_weight));
}

TEST(LinearCrossEntropyTest, OneChunkHasTheBitsOfSeparateOperators) {
  const Problem problem;
  expect_equal(differentiated(problem, linear_cross_entropy(problem.hidden, problem.weight, problem.targets)),
               differentiated(problem, problem.separate(at::Reduction::Mean)));
  expect_equal(differentiated(problem, linear_cross_entropy(problem.hidden, problem.weight, problem.targets,
                                                            {.reduction = "sum"})),
               differentiated(problem, problem.separate(at::Reduction::Sum)));
}

TEST(LinearCrossEntropyTest, OneChunkHasTheBitsOfSeparateOperatorsUnderAutocast) {
  const Problem problem;
  const Autocast autocast({.dtype = at::kBFloat16});
  expect_equal(differentiated(problem, linear_cross_entropy(problem.hidden, problem.weight, problem.targets)),
               differentiated(problem, problem.separate(at::Reduction::Mean)));
}

// Sums over chunks have another order: a few units in the last place of values around 1.
TEST(LinearCrossEntropyTest, ChunksChangeOnlyTheOrderOfSums) {
  const Problem problem;
  const auto expected = differentiated(problem, problem.separate(at::Reduction::Mean));
  for (const std::int64_t rows : {1, 3, 9, 10, 11}) {
    const auto result = differentiated(
        problem, linear_cross_entropy(problem.hidden, problem.weight, problem.targets, {.chunk_rows = rows}));
    EXPECT_TRUE(result.loss.allclose(expected.loss, 1e-6));
    EXPECT_TRUE(result.of_hidden.allclose(expected.of_hidden, 1e-5, 1e-7));
    EXPECT_TRUE(result.of_weight.allclose(expected.of_weight, 1e-5, 1e-7));
  }
}

// A loss that is divided by 5 has gradients of float32 products, also if they are stored in bfloat16.
TEST(LinearCrossEntropyTest, TheFactorOfTheLossIsNotRounded) {
  Problem problem;
  problem.hidden = problem.hidden.detach().to(at::kBFloat16).requires_grad_();
  problem.weight = problem.weight.detach().to(at::kBFloat16).requires_grad_();
  const auto gradient_of = [&](double factor) {
    const auto loss = linear_cross_entropy(problem.hidden, problem.weight, problem.targets);
    return torch::autograd::grad({loss * factor}, {problem.weight})[0];
  };
  EXPECT_TRUE(gradient_of(0.2).equal((gradient_of(1).to(at::kFloat) * 0.2F).to(at::kBFloat16)));
}

TEST(LinearCrossEntropyTest, EvaluatesWithoutGradients) {
  const Problem problem;
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(linear_cross_entropy(problem.hidden, problem.weight, problem.targets).requires_grad());
}

TEST(LinearCrossEntropyTest, RejectsWhatItCannotCompute) {
  const Problem problem;
  const auto message = [&](const at::Tensor& targets, const LinearCrossEntropyOptions& options) {
    return message_of<ArgumentError>(
        [&] { static_cast<void>(linear_cross_entropy(problem.hidden, problem.weight, targets, options)); });
  };
  EXPECT_THAT(message(problem.targets.flatten(), {}), HasSubstr("hidden [2, 5, 8], weight [11, 8], targets [10]"));
  EXPECT_THAT(message(problem.targets, {.reduction = "none"}), HasSubstr("expected 'mean' or 'sum', got 'none'"));
  {
    const Autocast autocast({.dtype = at::kHalf});
    EXPECT_THAT(message(problem.targets, {}), HasSubstr("float16 is unsupported"));
  }
  EXPECT_THAT(message(problem.targets, {.chunk_rows = 0}), HasSubstr("chunk_rows: expected 1 or more, got 0"));
  EXPECT_THAT(message_of<StateError>([&] {
                const auto loss = linear_cross_entropy(problem.hidden, problem.weight, problem.targets);
                torch::autograd::grad({loss}, {problem.hidden}, {}, /*retain_graph=*/true, /*create_graph=*/true);
              }),
              HasSubstr("create_graph is unsupported"));
}

}  // namespace
}  // namespace accel::testing
