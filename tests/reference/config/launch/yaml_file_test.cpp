// What our YAML reading adds to yaml-cpp: duplicate keys, keys that are not names, and errors with file and line.
#include "reference/config/yaml_reader.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/cpu_time.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

using ::testing::AllOf;
using ::testing::HasSubstr;

namespace accel {
namespace {

std::string problems_of(const std::string& text) {
  YamlProblems problems("run.yaml");
  try {
    parse_yaml(text, "run.yaml", problems);
    problems.throw_if_any();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// yaml-cpp keeps one of the values silently, so a typo in a copied block would be lost.
TEST(YamlFileTest, ADuplicateKeyIsNamedAtAnyDepth) {
  EXPECT_THAT(
      problems_of("a: 1\nlist:\n  - {b: 1, c: 2}\n  - {b: 1,\n     b: 2}\na: 2\n"),
      AllOf(HasSubstr("run.yaml:5: list.b: duplicate key"), HasSubstr("run.yaml:6: a: duplicate key; keep only one")));
  EXPECT_EQ(problems_of("a: {b: 1}\nc: {b: 2}\nd: [{b: 1}, {b: 1}, 3, ~]\n"), "");
}

TEST(YamlFileTest, AKeyThatIsNoNameIsRefused) {
  EXPECT_THAT(problems_of("a: 1\n[1, 2]: 3\n"), HasSubstr("run.yaml:2: a key is not a name"));
  EXPECT_THAT(problems_of("a:\n  {b: c}: 3\n"), HasSubstr("run.yaml:2: a: a key is not a name"));
}

TEST(YamlFileTest, TextThatIsNoYamlIsRefusedWithItsLine) {
  EXPECT_THAT(problems_of("a: 1\nb: [1\n"), HasSubstr("run.yaml:3: not valid YAML: "));
}

// Readers follow aliases: a node that contains itself would never end, and ten levels of ten aliases are 10^10 values.
TEST(YamlFileTest, AliasesThatExpandTooFarAreRefused) {
  EXPECT_THAT(problems_of("a: &a [*a]\n"), HasSubstr("run.yaml: nested more than 32 deep"));
  std::string bomb = "a0: &a0 [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]\n";
  for (int level = 1; level < 300; ++level) {
    bomb += fmt::format("a{}: &a{} [", level, level);
    for (int i = 0; i < 10; ++i) bomb += fmt::format("{}*a{}", i > 0 ? ", " : "", level - 1);
    bomb += "]\n";
  }
  EXPECT_LT(testing::cpu_seconds([&] {
              EXPECT_THAT(problems_of(bomb), HasSubstr("run.yaml: more than 300000 keys and values, with aliases"));
            }),
            4);
  EXPECT_EQ(problems_of("a: &a {x: 1}\nb: [*a, *a]\n"), "");
}

TEST(YamlFileTest, TextsThatAreTooLargeAreRefused) {
  EXPECT_THAT(problems_of("a: " + std::string(20'000'000, 'x')), HasSubstr("run.yaml: 20000003 bytes; expected"));
  std::string commas = "a: [";
  for (int i = 0; i < 1'000'000; ++i) commas += "1,";
  EXPECT_THAT(problems_of(commas + "]"), HasSubstr("run.yaml: more than 300000 keys and values"));
  EXPECT_THAT(problems_of("a: " + std::string(100'000, '[')), HasSubstr("run.yaml:1: not valid YAML"));
}

TEST(YamlFileTest, ManyProblemsAreCountedAndNotListed) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += fmt::format("unknown_{}: 1\n", i);
  YamlProblems problems("run.yaml");
  YamlReader reader(parse_yaml(text, "run.yaml", problems), "", problems);
  (void)reader.optional<int>("epochs");
  reader.finish_keys();
  const auto message = testing::message_of<ConfigError>([&] { problems.throw_if_any(); });
  EXPECT_THAT(message, AllOf(HasSubstr("run.yaml:20: unknown_19: unknown key"), HasSubstr("\nand 99,980 more")));
  EXPECT_LT(message.size(), 3'000);
}

// yaml-cpp gives null for it, which every reader would have to handle.
TEST(YamlFileTest, AnEmptyTextIsAnEmptyMapping) {
  YamlProblems problems("run.yaml");
  EXPECT_TRUE(parse_yaml("", "run.yaml", problems).IsMap());
  EXPECT_TRUE(parse_yaml("# nothing\n", "run.yaml", problems).IsMap());
}

// A folder can be opened like a file but not read.
TEST(YamlFileTest, AFileThatCannotBeReadIsNamed) {
  const testing::TemporaryFolder folder;
  EXPECT_EQ(read_text(folder.write("a.yaml", "a: 1\n")), "a: 1\n");
  const auto message_of = [](const std::string& file) -> std::string {
    try {
      read_text(file);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message_of(folder.path("absent.yaml")),
            folder.path("absent.yaml") + ": cannot be read: No such file or directory; expected a readable file");
  EXPECT_EQ(message_of(folder.path()), folder.path() + ": cannot be read: Is a directory; expected a readable file");
}

}  // namespace
}  // namespace accel
