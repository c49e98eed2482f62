// What our YAML reading adds to yaml-cpp: duplicate keys, keys that are not names, and errors with file and line.
#include "reference/config/yaml_reader.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
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

// The search for duplicate keys follows aliases and must not recurse forever.
TEST(YamlFileTest, ACyclicAliasTerminates) { EXPECT_EQ(problems_of("a: &a [*a]\n"), ""); }

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
