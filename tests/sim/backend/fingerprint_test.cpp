#include "sim/backend/fingerprint.hpp"

#include <string>
#include <utility>

#include "tests/support/property.hpp"

namespace accel::sim {
namespace {

using testing::expect_property;
using testing::pick;

std::uint64_t of(const std::string& bytes) { return fingerprint(bytes.data(), bytes.size()); }

std::string any_bytes(std::size_t least) {
  return *rc::gen::container<std::string>(pick<std::size_t>(least, 300), rc::gen::arbitrary<char>());
}

TEST(FingerprintLaws, OneBitMakesItAnother) {
  expect_property(2000, [] {
    const auto bytes = any_bytes(1);
    auto flipped = bytes;
    flipped[pick<std::size_t>(0, bytes.size())] ^= static_cast<char>(1 << pick(0, 8));
    RC_ASSERT(of(flipped) != of(bytes));
  });
}

TEST(FingerprintLaws, TheOrderOfBytesCounts) {
  expect_property(2000, [] {
    const auto bytes = any_bytes(2);
    auto swapped = bytes;
    std::swap(swapped[pick<std::size_t>(0, bytes.size())], swapped[pick<std::size_t>(0, bytes.size())]);
    RC_ASSERT((of(swapped) == of(bytes)) == (swapped == bytes));
  });
}

TEST(FingerprintLaws, TheNumberOfBytesCounts) {
  expect_property(500, [] {
    const auto bytes = any_bytes(0);
    RC_ASSERT(of(bytes + '\0') != of(bytes));
  });
}

TEST(FingerprintLaws, WhereTheBytesLieDoesNotCount) {
  expect_property(500, [] {
    const auto bytes = any_bytes(0);
    const auto ahead = pick<std::size_t>(1, 70);
    RC_ASSERT(fingerprint((std::string(ahead, 'x') + bytes).data() + ahead, bytes.size()) == of(bytes));
  });
}

}  // namespace
}  // namespace accel::sim
