// SHA-256, by which runs are compared. Tested with the vectors of the standard and with data in pieces.
#include "reference/files/sha256.hpp"

#include <gtest/gtest.h>

#include <string>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The hash of a text.
std::string sha256(const std::string& text) {
  Sha256 hash;
  hash.update(text.data(), text.size());
  return hash.hex();
}

// The vectors of FIPS 180-2, appendix B, and of the empty message.
TEST(Sha256Test, TheDigestsAreThoseOfTheStandard) {
  EXPECT_EQ(sha256(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  // A million bytes span many blocks, and the length field needs more than 16 bits.
  EXPECT_EQ(sha256(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Tensors are hashed piece by piece. Empty pieces must not change anything.
TEST(Sha256Test, PiecesHashLikeTheFullMessage) {
  Sha256 hash;
  hash.update("a", 1);
  hash.update("", 0);
  hash.update("bc", 2);
  EXPECT_EQ(hash.hex(), sha256("abc"));
}

// The padding has been added, so more data would give a meaningless hash.
TEST(Sha256Test, AFinishedHashAcceptsNoMoreData) {
  Sha256 hash;
  hash.hex();
  EXPECT_THROW(hash.hex(), InternalError);
  EXPECT_THROW(hash.update("a", 1), InternalError);
}

}  // namespace
}  // namespace accel
