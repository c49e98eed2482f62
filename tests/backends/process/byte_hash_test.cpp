#include "backends/process/byte_hash.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <vector>

namespace accel::process {
namespace {

TEST(ByteHashTest, AnyBitCounts) {
  for (const std::size_t size : {1, 7, 8, 9, 64, 100}) {
    std::vector<unsigned char> bytes(size);
    std::set<std::uint64_t> hashes{byte_hash(bytes.data(), size)};
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] ^= 1 << bit % 8;
      hashes.insert(byte_hash(bytes.data(), size));
      bytes[bit / 8] ^= 1 << bit % 8;
    }
    EXPECT_EQ(hashes.size(), 8 * size + 1) << size;
  }
}

TEST(ByteHashTest, SizeAndPlaceCount) {
  const char bytes[] = "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
  EXPECT_NE(byte_hash(bytes, 8), byte_hash(bytes, 7));
  EXPECT_NE(byte_hash(bytes, 16), byte_hash(bytes + 8, 16));
}

TEST(SampleHashTest, ChangesOfSmallTensorsAndOfWholeOnesAreSeen) {
  for (const auto size : {1, 1000, 1'000'000}) {
    const auto tensor = at::arange(size, at::kFloat);
    const auto before = sample_hash(tensor);
    EXPECT_EQ(sample_hash(tensor.clone()), before);
    EXPECT_NE(sample_hash(tensor + 1), before);
    tensor[size - 1] += 1;
    EXPECT_NE(sample_hash(tensor), before);
  }
  EXPECT_EQ(sample_hash(at::zeros({4, 4}).slice(/*dim=*/1, 0, 2)), 0u);
}

}  // namespace
}  // namespace accel::process
