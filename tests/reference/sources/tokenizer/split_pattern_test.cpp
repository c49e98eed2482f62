// Patterns in Oniguruma's syntax, as PCRE2 runs them after their translation. properties/oracle compares both libraries
// on all code points.
#include "reference/sources/tokenizer/split_pattern.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/sources/tokenizer/text_splitter.hpp"

namespace accel::sources {
namespace {

using ::testing::ElementsAre;

std::vector<std::string_view> split(std::string_view pattern, std::string_view text, const SplitOptions& options = {}) {
  std::vector<std::string> problems;
  const auto translated = to_pcre2(pattern, problems);
  EXPECT_THAT(problems, ElementsAre());
  return TextSplitter(translated, options).split(text);
}

TEST(SplitPatternTest, Gpt2PatternSplitsWordsNumbersAndSpaces) {
  EXPECT_THAT(split(kGpt2Pattern, "I'll  pay 20 \xe2\x82\xac!\n"),
              ElementsAre("I", "'ll", " ", " pay", " 20", " \xe2\x82\xac!", "\n"));
}

TEST(SplitPatternTest, CaseIsIgnoredInAGroupOnly) {
  EXPECT_THAT(split("(?i:'s)|t", "a'Sb'sTt"), ElementsAre("a", "'S", "b", "'s", "T", "t"));
}

// U+1C89 is a letter since Unicode 16; PCRE2 10.42 has Unicode 14.
TEST(SplitPatternTest, LettersAreThoseOfUnicode16) {
  EXPECT_THAT(split(R"(\p{L}+)", "a\xe1\xb2\x89 "), ElementsAre("a\xe1\xb2\x89", " "));
  EXPECT_THAT(split(R"([^\p{Lu}]+)", "a\xe1\xb2\x89"), ElementsAre("a", "\xe1\xb2\x89"));
  EXPECT_THAT(split(R"(\P{L}+)", "\xe1\xb2\x89-"), ElementsAre("\xe1\xb2\x89", "-"));
}

// PCRE2's \s contains U+180E.
TEST(SplitPatternTest, SpacesAreUnicodeWhiteSpace) {
  EXPECT_THAT(split(R"(\s)", "\xe1\xa0\x8e\xc2\x85"), ElementsAre("\xe1\xa0\x8e", "\xc2\x85"));
  EXPECT_THAT(split(R"([\s]|\S)", "\xe1\xa0\x8e "), ElementsAre("\xe1\xa0\x8e", " "));
}

TEST(SplitPatternTest, EverythingElseIsReported) {
  const auto problems_of = [](std::string_view pattern) {
    std::vector<std::string> problems;
    (void)to_pcre2(pattern, problems);
    return problems;
  };
  EXPECT_THAT(problems_of(R"(\w\p{Han}.)"), ElementsAre(R"('\w')", R"('\p{Han}')", "'.'"));
  EXPECT_THAT(problems_of("a{2,3}+b{,3}c{2}?"), ElementsAre("'{2,3}+'", "'{,3}'", "'{2}?'"));
  EXPECT_THAT(problems_of("[a[b]c]"), ElementsAre("'[b'"));
  EXPECT_THAT(problems_of(R"([a-\s])"), ElementsAre(R"('\s')"));
  EXPECT_THAT(problems_of("(?x:a)"), ElementsAre("'(?x:'"));
  EXPECT_THAT(
      problems_of("(?i:stra\xc3\x9f)"),
      ElementsAre("'st' in a group (?i:)", "letters other than ASCII in (?i:)", "letters other than ASCII in (?i:)"));
  EXPECT_THAT(problems_of(R"(^a$)"), ElementsAre("'^'", "'$'"));
}

TEST(SplitPatternTest, ALiteralHasNoSyntax) {
  EXPECT_THAT(TextSplitter(literal_pattern("a+.\\"), {}).split("aa+.\\"), ElementsAre("a", "a+.\\"));
}

TEST(SplitPatternTest, PatternsWithoutUseAreErrors) {
  EXPECT_THROW(TextSplitter("a*", {}), ArgumentError);
  EXPECT_THROW(TextSplitter("(a", {}), ArgumentError);
}

// Source: the examples of tokenizers' SplitDelimiterBehavior.
TEST(SplitBehaviorTest, MatchesAreRemovedIsolatedOrMerged) {
  const auto text = "the-final--countdown";
  const auto pieces = [&](SplitBehavior behavior) { return split("-", text, {.behavior = behavior}); };
  EXPECT_THAT(pieces(SplitBehavior::kRemoved), ElementsAre("the", "final", "countdown"));
  EXPECT_THAT(pieces(SplitBehavior::kIsolated), ElementsAre("the", "-", "final", "-", "-", "countdown"));
  EXPECT_THAT(pieces(SplitBehavior::kMergedWithPrevious), ElementsAre("the-", "final-", "-", "countdown"));
  EXPECT_THAT(pieces(SplitBehavior::kMergedWithNext), ElementsAre("the", "-final", "-", "-countdown"));
  EXPECT_THAT(pieces(SplitBehavior::kContiguous), ElementsAre("the", "-", "final", "--", "countdown"));
}

TEST(SplitBehaviorTest, InvertExchangesMatchesAndTheRest) {
  EXPECT_THAT(split("-", "a-b", {.behavior = SplitBehavior::kRemoved, .invert = true}), ElementsAre("-"));
}

// Generated code has a small stack; the interpreter must take over.
TEST(SplitBehaviorTest, ALongMatchOfAGroupIsFound) {
  const std::string text(1 << 20, 'a');
  EXPECT_THAT(split("(?:aa|a)+", text), ElementsAre(text));
}

}  // namespace
}  // namespace accel::sources
