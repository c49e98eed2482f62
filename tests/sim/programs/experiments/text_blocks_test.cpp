// A text as samples for a language model: blocks of bytes, the bytes that follow them as targets, and the file
// itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "reference/core/errors.hpp"
#include "sim/programs/experiments/text_blocks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::programs {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<const std::string> text(const std::string& bytes) { return std::make_shared<const std::string>(bytes); }

void expect_rows(const at::Tensor& actual, std::vector<std::vector<std::int64_t>> rows) {
  std::vector<at::Tensor> tensors;
  for (const auto& row : rows) tensors.push_back(torch::tensor(row, torch::kLong));
  EXPECT_TRUE(at::equal(actual, torch::stack(tensors))) << actual;
}

// Blocks do not overlap, and a batch may take them in any order.
TEST(TextBlocksTest, TargetsAreTheBytesAfterTheInputs) {
  const TextBlocks blocks(text("abcdefgh"), {.begin = 0, .end = 8}, 3);
  const auto [inputs, targets] = blocks.get_batch({1, 0});
  expect_rows(inputs, {{'d', 'e', 'f'}, {'a', 'b', 'c'}});
  expect_rows(targets, {{'e', 'f', 'g'}, {'b', 'c', 'd'}});
}

// char is signed on x86, so bytes above 127 need a conversion.
TEST(TextBlocksTest, BytesAboveAsciiAreNotNegative) {
  const auto [inputs, targets] = TextBlocks(text("\xc3\xa4\xff"), {.begin = 0, .end = 3}, 2).get_batch({0});
  expect_rows(inputs, {{0xc3, 0xa4}});
  expect_rows(targets, {{0xa4, 0xff}});
}

// The last byte of a block is trained to predict the next one, which must exist.
TEST(TextBlocksTest, ABlockWithoutAFollowingByteIsNotASample) {
  EXPECT_EQ(TextBlocks(text("abcdefgh"), {.begin = 0, .end = 6}, 3).size(), 1);
  EXPECT_EQ(TextBlocks(text("abcdefgh"), {.begin = 0, .end = 7}, 3).size(), 2);
  EXPECT_EQ(TextBlocks(text(""), {.begin = 0, .end = 0}, 3).size(), 0);
}

// Training must not see bytes of the part that evaluates it.
TEST(TextBlocksTest, APartOfATextHasItsOwnEnd) {
  const TextBlocks part(text("abcdefgh"), {.begin = 3, .end = 6}, 2);
  EXPECT_EQ(part.size(), 1);
  expect_rows(std::get<1>(part.get_batch({0})), {{'e', 'f'}});
  EXPECT_THROW(static_cast<void>(part.get_batch({1})), ArgumentError);
  EXPECT_THROW(static_cast<void>(part.get_batch({-1})), ArgumentError);
}

// 15 + 16 selects the gzip format in zlib.
std::string gzipped(const std::string& bytes) {
  std::string packed(bytes.size() + 100, '\0');
  z_stream stream{};
  deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// The sizes differ from the reader's buffer, so that it is filled several times and then in part.
TEST(LoadTextTest, GzippedTextEqualsThePlainText) {
  const testing::TemporaryFolder folder;
  std::string bytes;  // longer than one piece of the reader
  for (int index = 0; index < 300'000; ++index) bytes += static_cast<char>(index * index >> 7);
  EXPECT_EQ(*load_text(folder.write("plain.txt", bytes)), bytes);
  EXPECT_EQ(*load_text(folder.write("packed.txt.gz", gzipped(bytes))), bytes);
}

// The case in which the last read returns no bytes at all.
TEST(LoadTextTest, TextOfSeveralFullPiecesIsReadToItsEnd) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(load_text(folder.write("text", std::string(2 << 20, 'x')))->size(), 2 << 20);
}

// 64 ranks in one process would otherwise hold the text 64 times.
TEST(LoadTextTest, RanksShareOneCopy) {
  const testing::TemporaryFolder folder;
  const auto path = folder.write("text", "abc");
  EXPECT_EQ(load_text(path).get(), load_text(path).get());
}

std::string error_of(const std::string& path) {
  try {
    load_text(path);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(LoadTextTest, DamagedOrMissingFileIsNamed) {
  const testing::TemporaryFolder folder;
  const auto packed = gzipped(std::string(10'000, 'x') + "yz");
  // A missing checksum: all bytes of the text are present, and only the end of the stream reveals the damage.
  const auto short_path = folder.write("short.gz", packed.substr(0, packed.size() - 9));
  EXPECT_THAT(error_of(short_path), HasSubstr("short.gz"));
  EXPECT_THAT(error_of(folder.path("none")), HasSubstr("none: cannot be opened"));
}

}  // namespace
}  // namespace accel::programs
