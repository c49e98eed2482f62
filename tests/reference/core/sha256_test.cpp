#include "reference/core/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

// Vectors of FIPS 180-2, appendix B, and of the empty message.
TEST(Sha256Test, TheDigestsAreThoseOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256Test, PiecesHashLikeTheWhole) {
  Sha256 hash;
  hash.update("a", 1);
  hash.update("", 0);
  hash.update("bc", 2);
  EXPECT_EQ(hash.hex(), sha256("abc"));
}

TEST(Sha256Test, AnEndedHashTakesNoMore) {
  Sha256 hash;
  hash.hex();
  EXPECT_THROW(hash.hex(), InternalError);
  EXPECT_THROW(hash.update("a", 1), InternalError);
}

}  // namespace
}  // namespace accel
