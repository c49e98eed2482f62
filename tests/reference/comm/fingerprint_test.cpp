// The fingerprint of parameters, by which the simulator compares replicas at every optimizer step. A collision
// would hide replicas that differ, so the tests look for the systematic ones: single bits, order, length and signs.
#include "reference/comm/fingerprint.hpp"

#include <ATen/ATen.h>

#include <string>
#include <utility>
#include <vector>

#include "reference/comm/tensor_fingerprint.hpp"
#include "tests/support/property.hpp"

namespace accel {
namespace {

using testing::expect_property;
using testing::pick;

std::uint64_t of(const std::string& bytes) { return fingerprint(bytes.data(), bytes.size()); }

// Up to 300 random bytes.
std::string any_bytes(std::size_t least) {
  return *rc::gen::container<std::string>(pick<std::size_t>(least, 300), rc::gen::arbitrary<char>());
}

// Flipping one bit is what a fault on a link or in memory does.
TEST(FingerprintLaws, OneBitMakesItAnother) {
  expect_property(2000, [] {
    const auto bytes = any_bytes(1);
    auto flipped = bytes;
    flipped[pick<std::size_t>(0, bytes.size())] ^= static_cast<char>(1 << pick(0, 8));
    RC_ASSERT(of(flipped) != of(bytes));
  });
}

// Sums of words would not notice that two parameters are exchanged.
TEST(FingerprintLaws, TheOrderOfBytesCounts) {
  expect_property(2000, [] {
    const auto bytes = any_bytes(2);
    auto swapped = bytes;
    std::swap(swapped[pick<std::size_t>(0, bytes.size())], swapped[pick<std::size_t>(0, bytes.size())]);
    RC_ASSERT((of(swapped) == of(bytes)) == (swapped == bytes));
  });
}

// A tail that is padded with zeros must not equal a shorter buffer.
TEST(FingerprintLaws, TheNumberOfBytesCounts) {
  expect_property(500, [] {
    const auto bytes = any_bytes(0);
    RC_ASSERT(of(bytes + '\0') != of(bytes));
  });
}

// Parameters of two ranks have different alignments, and the vectorized loop must not depend on them.
TEST(FingerprintLaws, TheAddressOfTheBytesDoesNotMatter) {
  expect_property(500, [] {
    const auto bytes = any_bytes(0);
    const auto ahead = pick<std::size_t>(1, 70);
    RC_ASSERT(fingerprint((std::string(ahead, 'x') + bytes).data() + ahead, bytes.size()) == of(bytes));
  });
}

// Changing the sign of several floats flips their highest bits, which cancel out in a plain sum of 64-bit words.
// The indices 3 and 35 are in the same lane of the unrolled loop.
TEST(FingerprintTest, SignsCount) {
  std::vector<float> weights(256);
  for (std::size_t i = 0; i < weights.size(); ++i) weights[i] = 0.25f + static_cast<float>(i);
  const auto of_weights = [&] { return fingerprint(weights.data(), weights.size() * sizeof(float)); };
  const auto before = of_weights();
  weights[3] = -weights[3], weights[35] = -weights[35];
  EXPECT_NE(of_weights(), before);
  weights[3] = -weights[3], weights[35] = -weights[35];
  for (auto& weight : weights) weight = -weight;
  EXPECT_NE(of_weights(), before);
}

// A highest bit that is shifted out of a lane would make its position irrelevant.
TEST(FingerprintTest, ThePlaceOfAHighestBitCounts) {
  std::string early(192, '\0'), late = early;
  early[3] = late[131] = static_cast<char>(0x80);
  EXPECT_NE(of(early), of(late));
}

TEST(SampleFingerprintTest, ChangesOfSmallTensorsAndOfWholeOnesAreSeen) {
  for (const auto size : {1, 1000, 1'000'000}) {
    const auto tensor = at::arange(size, at::kFloat);
    const auto before = sample_fingerprint(tensor);
    EXPECT_EQ(sample_fingerprint(tensor.clone()), before);
    EXPECT_NE(sample_fingerprint(tensor + 1), before);
    tensor[size - 1] += 1;
    EXPECT_NE(sample_fingerprint(tensor), before);
  }
  EXPECT_EQ(sample_fingerprint(at::zeros({4, 4}).slice(/*dim=*/1, 0, 2)), 0u);
}

}  // namespace
}  // namespace accel
