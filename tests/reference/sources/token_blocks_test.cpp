// Text files as blocks of tokens.
#include "reference/sources/token_blocks.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using ::testing::HasSubstr;

static_assert(BatchedDataset<TokenBlocks>);

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(actual, expected)) << actual << expected;
}

// Letters and the newline have ids of their own.
class TokenizeFilesTest : public ::testing::Test {
 protected:
  TokenizeFilesTest()
      : tokenizer_(Tokenizer::from_file(folder_.write("tokenizer.json", R"({
          "added_tokens": [{"id": 4, "content": "<end>", "special": true, "normalized": false}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "post_processor": {"type": "TemplateProcessing",
                             "single": [{"SpecialToken": {"id": "b"}}, {"Sequence": {"id": "A"}}],
                             "special_tokens": {"b": {"ids": [1]}}},
          "model": {"vocab": {"a": 0, "b": 1, "Ċ": 2, "ab": 3}, "merges": ["a b"]}})"))) {}

  at::Tensor tokens(const std::vector<std::string>& texts, const TokenizeOptions& options) {
    std::vector<std::string> paths;
    for (const auto& text : texts) paths.push_back(folder_.write(std::to_string(paths.size()), text));
    return tokenize_files(tokenizer_, paths, options);
  }

  testing::TemporaryFolder folder_;
  Tokenizer tokenizer_;
};

TEST_F(TokenizeFilesTest, FilesAreTextsThatFollowOneAnother) {
  expect_equal(tokens({"ab\na", "a"}, {.end_of_text = "<end>", .add_special_tokens = false}),
               torch::tensor({3, 2, 0, 4, 0, 4}, torch::kInt));
  expect_equal(tokens({"ab", "a"}, {}), torch::tensor({1, 3, 1, 0}, torch::kInt));
}

TEST_F(TokenizeFilesTest, LinesAreTextsWithoutTheirEnds) {
  expect_equal(tokens({"ab\r\n\na"}, {.by_line = true, .end_of_text = "<end>", .add_special_tokens = false}),
               torch::tensor({3, 4, 4, 0, 4}, torch::kInt));
}

// As TextLines reads the same file.
TEST_F(TokenizeFilesTest, CarriageReturnsAndAByteOrderMarkAreNoText) {
  const TokenizeOptions options{.by_line = true, .end_of_text = "<end>", .add_special_tokens = false};
  expect_equal(tokens({"\xef\xbb\xbf"
                       "ab\r\ra\r"},
                      options),
               torch::tensor({3, 4, 4, 0, 4}, torch::kInt));
  expect_equal(tokens({"\xef\xbb\xbf"
                       "ab"},
                      {.add_special_tokens = false}),
               torch::tensor({3}, torch::kInt));
}

TEST_F(TokenizeFilesTest, FilesThatAreNotUtf8AreNamed) {
  try {
    tokens({"ab\xff"}, {});
    FAIL() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/0: byte 2 is not UTF-8"));
  }
  EXPECT_THROW(tokens({"a"}, {.end_of_text = "<eos>"}), ArgumentError);
}

TEST_F(TokenizeFilesTest, IdsBeyondInt32AreAnError) {
  tokenizer_ = Tokenizer::from_file(
      folder_.write("tokenizer.json", R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
                            "model": {"vocab": {"a": 2147483647, "b": 2147483648}, "merges": []}})"));
  expect_equal(tokens({"a"}, {}), torch::tensor({2147483647}, torch::kInt));
  EXPECT_THROW(tokens({"ab"}, {}), ConfigError);
}

TEST(TokenBlocksTest, TargetsAreTheTokensAfterTheInputs) {
  const TokenBlocks blocks(torch::arange(10, torch::kInt), {.block_size = 3});
  EXPECT_EQ(blocks.size(), 3);
  const auto [inputs, targets] = blocks.get_batch({2, 0});
  expect_equal(inputs, torch::tensor({{6, 7, 8}, {0, 1, 2}}, torch::kLong));
  expect_equal(targets, torch::tensor({{7, 8, 9}, {1, 2, 3}}, torch::kLong));
  expect_equal(std::get<1>(blocks.get(1)), torch::tensor({4, 5, 6}, torch::kLong));
}

// The last token of a block is trained to predict the next one, which must exist.
TEST(TokenBlocksTest, ABlockWithoutAFollowingTokenIsNotASample) {
  EXPECT_EQ(TokenBlocks(torch::arange(9, torch::kInt), {.block_size = 3}).size(), 2);
  EXPECT_EQ(TokenBlocks(torch::arange(0, torch::kInt), {.block_size = 3}).size(), 0);
}

TEST(TokenBlocksTest, WrongArgumentsAreRejected) {
  const TokenBlocks blocks(torch::arange(10, torch::kLong), {.block_size = 3});
  EXPECT_THROW((void)blocks.get_batch({3}), ArgumentError);
  EXPECT_THROW((void)blocks.get_batch({-1}), ArgumentError);
  EXPECT_THROW(TokenBlocks(torch::zeros({2, 2}, torch::kInt)), ArgumentError);
  EXPECT_THROW(TokenBlocks(torch::zeros({2})), ArgumentError);
  EXPECT_THROW(TokenBlocks(torch::zeros({2}, torch::kInt), {.block_size = 0}), ArgumentError);
}

}  // namespace
}  // namespace accel
