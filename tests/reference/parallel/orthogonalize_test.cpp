// Tests of the two building blocks of PowerSGD: making columns orthonormal, and NumPy's random numbers, which
// Python uses as seeds. Both must do what PyTorch does, or the compressed gradients would differ.
#include "reference/parallel/power_sgd.hpp"

#include <gtest/gtest.h>

#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

at::Tensor products(const at::Tensor& matrices) { return at::matmul(matrices.transpose(-2, -1), matrices); }

// PyTorch uses Gram-Schmidt for rank 1 and 2 and a QR decomposition for more, so ranks on both sides are tested.
TEST(OrthogonalizeTest, ColumnsAreOrthonormalByGramSchmidtAndByQr) {
  torch::manual_seed(1);
  for (const std::int64_t rank : {1, 2, 3, 5}) {
    auto matrices = at::randn({4, 7, rank}, at::kDouble);
    orthogonalize(matrices);
    EXPECT_TRUE(at::allclose(products(matrices), at::eye(rank, at::kDouble).expand({4, rank, rank}), 0, 1e-12)) << rank;
  }
}

// Both forms are used: PowerSGD stacks matrices of the same shape.
TEST(OrthogonalizeTest, OneMatrixIsABatchOfOne) {
  auto matrix = at::randn({6, 3}, at::kDouble);
  auto batch = matrix.clone().unsqueeze(0);
  orthogonalize(matrix);
  orthogonalize(batch);
  EXPECT_TRUE(matrix.equal(batch[0]));
}

// A gradient of zeros would give a division by zero; `orthogonalization_epsilon` avoids it. Without it, PyTorch
// gives NaN, and so do we.
TEST(OrthogonalizeTest, EpsilonKeepsColumnsOfZerosFinite) {
  auto with = at::zeros({1, 4, 2}), without = at::zeros({1, 4, 2});
  orthogonalize(with, 1e-8);
  orthogonalize(without);
  EXPECT_TRUE(with.eq(0).all().item<bool>());
  EXPECT_TRUE(without.isnan().any().item<bool>()) << "as torch's";
}

// Expected values: r = numpy.random.RandomState(seed); [r.randint(1_000_000_000) for _ in range(5)]
TEST(NumpyRandomStateTest, DrawsWhatNumpyDraws) {
  const std::vector<std::pair<std::uint32_t, std::vector<std::uint32_t>>> expected = {
      {0u, {209652396, 398764591, 924231285, 404868288, 441365315}},
      {1u, {717354021, 946286476, 784077896, 491263, 550290313}},
      {42u, {534895718, 199900595, 862061404, 787846414, 996406378}},
      {4294967295u, {419326371, 479346978, 697429004, 269265991, 167655348}},
  };
  for (const auto& [seed, numbers] : expected) {
    NumpyRandomState random(seed);
    for (const auto number : numbers) EXPECT_EQ(random.randint(1'000'000'000), number) << "seed " << seed;
  }
}

}  // namespace
}  // namespace accel::testing
