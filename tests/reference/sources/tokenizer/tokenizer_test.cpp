// Tokenizers on small files. Equality with Python's `tokenizers` is checked in properties/oracle.
#include "reference/sources/tokenizer/tokenizer.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/sources/tokenizer/byte_level.hpp"
#include "reference/sources/tokenizer/utf8.hpp"
#include "tests/support/damage.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// All bytes, with their values as ids, and four merges. <s> gets the next free id, 260.
Json small_file() {
  auto file = Json::parse(R"({
    "version": "1.0",
    "added_tokens": [{"id": 260, "content": "<s>", "special": true, "normalized": false}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"he": 256, "llo": 257, "hello": 258, "ll": 259},
              "merges": [["l", "l"], ["ll", "o"], ["h", "e"], ["he", "llo"]]}})");
  for (int byte = 0; byte < 256; ++byte)
    file["model"]["vocab"][sources::to_byte_level(std::string(1, static_cast<char>(byte)))] = byte;
  return file;
}

class TokenizerTest : public ::testing::Test {
 protected:
  Tokenizer read(const Json& file) { return Tokenizer::from_file(folder_.write("tokenizer.json", file.dump())); }
  std::string error_of(const Json& file) {
    try {
      read(file);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  }
  testing::TemporaryFolder folder_;
};

TEST_F(TokenizerTest, WordsAreMergedByRank) {
  const auto tokenizer = read(small_file());
  EXPECT_THAT(tokenizer.encode("hello"), ElementsAre(258));
  EXPECT_THAT(tokenizer.encode("hell"), ElementsAre(256, 259));
  EXPECT_THAT(tokenizer.encode("<s>he\xc3\xa4"), ElementsAre(260, 256, 0xc3, 0xa4));
  EXPECT_EQ(tokenizer.vocab_size(), 261);
  EXPECT_EQ(tokenizer.token_to_id("<s>"), 260);
  EXPECT_EQ(tokenizer.id_to_token(258), "hello");
  EXPECT_EQ(tokenizer.id_to_token(261), std::nullopt);
}

TEST_F(TokenizerTest, IgnoreMergesFindsWordsThatNoMergeMakes) {
  auto file = small_file();
  file["model"]["merges"] = Json::array();
  EXPECT_EQ(read(file).encode("hello").size(), 5U);
  file["model"]["ignore_merges"] = true;
  EXPECT_THAT(read(file).encode("hello"), ElementsAre(258));
}

TEST_F(TokenizerTest, MergesOfOlderFilesAreTexts) {
  auto file = small_file();
  file["model"]["merges"] = {"#version: 0.2", "l l", "ll o", "h e", "he llo"};
  EXPECT_THAT(read(file).encode("hello"), ElementsAre(258));
}

TEST_F(TokenizerTest, SpecialTokensSurroundAText) {
  auto file = small_file();
  file["post_processor"] = Json::parse(R"({
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
    "special_tokens": {"<s>": {"ids": [260]}}})");
  const auto tokenizer = read(file);
  EXPECT_THAT(tokenizer.encode("he"), ElementsAre(260, 256));
  EXPECT_THAT(tokenizer.encode("he", {.add_special_tokens = false}), ElementsAre(256));
  EXPECT_EQ(tokenizer.decode({260, 256}), "he");
  EXPECT_EQ(tokenizer.decode({260, 256}, {.skip_special_tokens = false}), "<s>he");
}

TEST_F(TokenizerTest, TheLongestAddedTokenIsFound) {
  auto file = small_file();
  file["added_tokens"] = Json::parse(R"([{"id": 260, "content": "<x"}, {"id": 261, "content": "<x>"}])");
  EXPECT_THAT(read(file).encode("<x><x"), ElementsAre(261, 260));
}

TEST_F(TokenizerTest, AddedTokensIncludeSpacesAndRequireWordsAsFlagged) {
  auto file = small_file();
  file["added_tokens"] = Json::parse(R"([{"id": 260, "content": "<m>", "lstrip": true, "rstrip": true},
                                         {"id": 261, "content": "llo", "single_word": true}])");
  const auto tokenizer = read(file);
  EXPECT_THAT(tokenizer.encode("a \n<m>\xe3\x80\x80 b"), ElementsAre('a', 260, 'b'));
  EXPECT_THAT(tokenizer.encode("-llo"), ElementsAre('-', 257));
  EXPECT_THAT(tokenizer.encode("hello_llo"), ElementsAre(258, '_', 257));
}

// The characters of the byte map stand for bytes in tokens of the model only. `tokenizers` 0.23 decodes them to U+FFFD.
TEST_F(TokenizerTest, AddedTokensDecodeToTheirText) {
  auto file = small_file();
  for (const std::string text :
       {"\xc3\xa9", "<\xc3\xa9>", "caf\xc3\xa9", "\xc4\xa0x", "\xe6\x97\xa5 b", "\xc3\x83\xc2\xa9"}) {
    file["added_tokens"] = {{{"id", text == "\xc3\xa9" ? 0xe9 : 260}, {"content", text}, {"normalized", false}}};
    const auto tokenizer = read(file);
    EXPECT_EQ(tokenizer.decode(tokenizer.encode("he" + text + text + "he")), "he" + text + text + "he");
  }
  // A token that the model has as well: its bytes are part of a character here.
  file["added_tokens"] = {{{"id", 0xe9}, {"content", "\xc3\xa9"}}, {{"id", 256}, {"content", "he"}}};
  EXPECT_EQ(read(file).decode({0xe9, 0xa9, 0x9a, 256, 0xe9}), "\xe9\xa9\x9ahe\xc3\xa9");
}

// An embedding has a row per id, so that another id is another token.
TEST_F(TokenizerTest, AnAddedTokenThatGetsAnotherIdIsNamedInAWarning) {
  auto file = small_file();
  file["added_tokens"] =
      Json::parse(R"([{"id": 300, "content": "<a>"}, {"id": 261, "content": "<b>"}, {"id": 7, "content": "he"}])");
  ::testing::internal::CaptureStderr();
  const auto tokenizer = read(file);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "accel: warning: " + folder_.path("tokenizer.json") +
                ": added_tokens: '<a>' has the id 260 and not 300, 'he' has the id 256 and "
                "not 7, as in tokenizers; tokens that the model lacks follow its own\n");
  EXPECT_THAT(tokenizer.encode("<a><b>"), ElementsAre(260, 261));
}

// The JSON library takes a zero byte for the end of the text.
TEST_F(TokenizerTest, ZeroBytesAreReported) {
  const auto text = small_file().dump();
  for (const auto& end : {std::string(1, '\0'), std::string("\0{}", 3)}) {
    try {
      Tokenizer::from_file(folder_.write("tokenizer.json", text + end));
      FAIL() << "no error";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("tokenizer.json: byte {} is zero; expected JSON", text.size())));
    }
  }
}

TEST_F(TokenizerTest, AnUnknownKeyIsReported) {
  auto file = small_file();
  file["languages"] = {"en"};
  EXPECT_THAT(error_of(file), HasSubstr("languages: unknown; expected the keys of a tokenizer.json of version 1.0"));
}

TEST_F(TokenizerTest, BytesThatAreNotUtf8AreRejectedByEncodeAndReplacedByDecode) {
  const auto tokenizer = read(small_file());
  try {
    (void)tokenizer.encode("ab\xff");
    FAIL() << "no error";
  } catch (const ArgumentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("byte 2 of the text is not UTF-8"));
  }
  EXPECT_EQ(tokenizer.decode({'a', 0xe2, 0x82, 'b'}),
            "a\xef\xbf\xbd"
            "b");
  EXPECT_THROW((void)tokenizer.decode({-1}), ArgumentError);
}

// One message has everything, so that a user sees at once whether a model can be used.
TEST_F(TokenizerTest, AllUnsupportedPartsAreReportedTogether) {
  auto file = small_file();
  file["normalizer"] = {{"type", "Lowercase"}};
  file["pre_tokenizer"] = {{"type", "Metaspace"}};
  file["post_processor"] = {{"type", "BertProcessing"}};
  file["decoder"] = {{"type", "WordPiece"}};
  file["truncation"] = {{"max_length", 5}};
  file["model"]["dropout"] = 0.1;
  file["model"]["byte_fallback"] = true;
  EXPECT_THAT(error_of(file), AllOf(HasSubstr("tokenizer.json"),
                                    HasSubstr("normalizer: Lowercase is unsupported; expected null or NFC"),
                                    HasSubstr("pre_tokenizer: Metaspace"), HasSubstr("post_processor: BertProcessing"),
                                    HasSubstr("decoder: WordPiece"), HasSubstr("truncation: unsupported"),
                                    HasSubstr("model.dropout: 0.1"), HasSubstr("model.byte_fallback")));
  file["model"] = {{"type", "WordPiece"}};
  EXPECT_THAT(error_of(file), HasSubstr("model: WordPiece is unsupported; expected BPE"));
}

TEST_F(TokenizerTest, UnsupportedPatternsAreReportedWithTheirParts) {
  auto file = small_file();
  file["pre_tokenizer"] = Json::parse(R"({"type": "Sequence", "pretokenizers": [
    {"type": "Split", "behavior": "Isolated", "pattern": {"Regex": "\\w+|\\p{Han}"}}, {"type": "ByteLevel"}]})");
  EXPECT_THAT(error_of(file),
              HasSubstr(R"(pretokenizers[0].pattern: unsupported in a regular expression: '\w', '\p{Han}')"));
}

TEST_F(TokenizerTest, TheErrorOfAHostileFileIsShort) {
  auto file = small_file();
  for (int i = 0; i < 100; ++i) file["model"]["merges"].push_back({std::string(100000, 'n'), "x"});
  auto error = error_of(file);
  EXPECT_THAT(error, AllOf(HasSubstr("nnn... x': the vocabulary lacks"), HasSubstr("and 80 more")));
  EXPECT_LT(error.size(), 10000U);
  for (int i = 0; i < 10; ++i) file["model"]["vocab"][std::to_string(i) + std::string(100000, 'v')] = 7;
  error = error_of(file);
  EXPECT_THAT(error, HasSubstr("vvv...' have the same id, 7"));
  EXPECT_LT(error.size(), 10000U);
}

TEST_F(TokenizerTest, TheIdsOfASpecialTokenAreLimited) {
  auto file = small_file();
  file["post_processor"] = Json::parse(R"({"type": "TemplateProcessing", "special_tokens": {"<s>": {"id": "<s>"}},
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]})");
  auto& ids = file["post_processor"]["special_tokens"]["<s>"]["ids"];
  ids = std::vector<int>(16, 260);
  EXPECT_EQ(read(file).encode("").size(), 16U);
  ids.push_back(260);
  EXPECT_THAT(error_of(file), HasSubstr("a special token whose ids, at most 16, are in special_tokens"));
}

// Each one is a level of recursion in encode.
TEST_F(TokenizerTest, TheNumberOfPreTokenizersIsLimited) {
  auto file = small_file();
  auto stages = Json::array();
  for (int i = 0; i < 33; ++i) stages.push_back({{"type", "Digits"}});
  stages.push_back({{"type", "ByteLevel"}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", stages}};
  EXPECT_THAT(error_of(file), HasSubstr("pre_tokenizer.pretokenizers: 34 stages; expected at most 33"));
  stages.erase(0);
  file["pre_tokenizer"]["pretokenizers"] = stages;
  EXPECT_EQ(error_of(file), "no error");
}

TEST_F(TokenizerTest, ADamagedVocabularyIsReported) {
  auto file = small_file();
  file["model"]["merges"].push_back("he x");
  EXPECT_THAT(error_of(file), HasSubstr("model.merges: 'he x': the vocabulary lacks 'hex'"));
  for (int i = 0; i < 30; ++i) file["model"]["merges"].push_back("he x");
  EXPECT_THAT(error_of(file), HasSubstr("and 11 more"));
  file = small_file();
  file["model"]["vocab"]["llo"] = 258;
  EXPECT_THAT(error_of(file), HasSubstr("'hello' and 'llo' have the same id, 258"));
  file["model"]["vocab"]["llo"] = -1;
  EXPECT_THAT(error_of(file), HasSubstr("model.vocab['llo']: expected a number from 0 to 4294967295, got -1"));
}

// `tokenizers` has the combining classes of Unicode 9, so that it leaves U+0898, of Unicode 14, where it is.
TEST_F(TokenizerTest, NfcOrdersMarksByCurrentUnicode) {
  auto file = small_file();
  file["normalizer"] = {{"type", "NFC"}};
  const auto tokenizer = read(file);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("e\xcc\x81")), "\xc3\xa9");
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("x\xe0\xa2\x98\xcc\xa3")), "x\xcc\xa3\xe0\xa2\x98");
}

TEST_F(TokenizerTest, DecodeReturnsTheText) {
  const auto tokenizer = read(small_file());
  testing::expect_property(500, [&] {
    std::string text;
    for (int i = 0, length = testing::pick(0, 30); i < length; ++i)
      text += testing::pick_from<std::string>({"he", "llo", " ", "\n", "\xc3\xa4", "\xf0\x9f\x98\x80", "'s", "<s"});
    RC_ASSERT(tokenizer.decode(tokenizer.encode(text)) == text);
  });
}

TEST_F(TokenizerTest, DamagedFilesAreReadOrRejected) {
  const auto text = small_file().dump();
  testing::expect_property(300, [&] {
    const auto path = folder_.write("tokenizer.json", testing::damaged(text));
    testing::read_or_reject(path, [&] { (void)Tokenizer::from_file(path); });
  });
}

TEST(Utf8Test, InvalidPartsAreReplacedAsInRustAndPython) {
  using sources::replace_invalid_utf8;
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(replace_invalid_utf8("a\xc3\xa4\xf0\x9f\x98\x80"), "a\xc3\xa4\xf0\x9f\x98\x80");
  EXPECT_EQ(replace_invalid_utf8("\xf0\x9f\x98"
                                 "a"),
            mark + "a");
  EXPECT_EQ(replace_invalid_utf8("\xed\xa0\x80"), mark + mark + mark);  // a surrogate
  EXPECT_EQ(replace_invalid_utf8("\xc0\x80\xf5"), mark + mark + mark);
  EXPECT_EQ(replace_invalid_utf8("\xe2\x82"), mark);
}

}  // namespace
}  // namespace accel
