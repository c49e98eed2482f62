// YamlReader: typed access to a mapping that collects all problems, each with its line, before it fails. Experiment
// files, network files and fault files are read through it.
#include "reference/config/yaml_reader.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

namespace accel {
namespace {

// What the reader is asked for, with one field of each type.
struct Settings {
  int epochs = 0;
  std::optional<double> lr;
  std::optional<bool> shuffle;
  std::optional<std::vector<std::string>> tags;
  std::string name;
  int width = 0;
};

// Reads the settings in the way in which programs use the reader.
Settings read(const std::string& text) {
  YamlProblems problems("run.yaml");
  YamlReader reader(YAML::Load(text), "", problems);
  Settings settings;
  settings.epochs = reader.required<int>(
      "epochs", [](int n) { return n >= 1; }, "1 or more");
  settings.lr = reader.optional<double>("lr");
  settings.shuffle = reader.optional<bool>("shuffle");
  settings.tags = reader.optional<std::vector<std::string>>("tags");
  auto model = reader.mapping("model");
  settings.name = model.required<std::string>("name");
  settings.width = model.optional<int>("width").value_or(8);
  model.finish_keys();
  reader.reject_unsupported("fsdp");
  reader.finish_keys();
  problems.throw_if_any();
  return settings;
}

std::string experiment_problems_of(const std::string& text) {
  try {
    read(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

// "1e-3" is a number here, although YAML 1.1 takes it for a text.
TEST(YamlReaderTest, AFaultlessFileGivesItsValues) {
  const auto settings = read("epochs: 3\nlr: 1e-3\nshuffle: true\ntags: [a, b]\nmodel:\n  name: mlp\n");
  EXPECT_EQ(settings.epochs, 3);
  EXPECT_EQ(settings.lr, 1e-3);
  EXPECT_EQ(settings.shuffle, true);
  EXPECT_THAT(settings.tags, ::testing::Optional(::testing::ElementsAre("a", "b")));
  EXPECT_EQ(settings.name, "mlp");
  EXPECT_EQ(settings.width, 8);
}

// "lr: ~" is how a --set option removes a key.
TEST(YamlReaderTest, ANullIsAnAbsentKey) { EXPECT_EQ(read("epochs: 1\nlr: ~\nmodel: {name: mlp}\n").lr, std::nullopt); }

// A misspelled key would otherwise have no effect, without a message.
TEST(YamlReaderTest, AnUnknownKeyIsNamedWithItsLineAndTheKnownOnes) {
  const auto message = experiment_problems_of("epochs: 1\nmodel: {name: mlp}\nepoch: 2\n");
  EXPECT_THAT(message, HasSubstr("run.yaml:3: epoch: unknown key; known: epochs, fsdp, lr, model, shuffle, tags"));
}

// The message states the expected type and the given value, because "bad conversion" of yaml-cpp does neither.
TEST(YamlReaderTest, AWrongTypeIsNamedWithItsLine) {
  EXPECT_THAT(experiment_problems_of("epochs: many\nmodel: {name: mlp}\n"),
              HasSubstr("run.yaml:1: epochs: expected 1 or more, got 'many'"));
  EXPECT_THAT(experiment_problems_of("epochs: 1\nshuffle: 7\nmodel: {name: mlp}\n"),
              HasSubstr("run.yaml:2: shuffle: expected true or false, got '7'"));
  EXPECT_THAT(experiment_problems_of("epochs: 1\nlr: [1]\nmodel: {name: mlp}\n"),
              HasSubstr("run.yaml:2: lr: expected a number, got [1]"));
  EXPECT_THAT(experiment_problems_of("epochs: 1\nmodel: {name: mlp, width: 1.5}\n"),
              HasSubstr("run.yaml:2: model.width: expected an integer, got '1.5'"));
}

TEST(YamlReaderTest, AnImpossibleValueIsNamedWithWhatIsExpected) {
  EXPECT_THAT(experiment_problems_of("epochs: 0\nmodel: {name: mlp}\n"),
              HasSubstr("run.yaml:1: epochs: expected 1 or more, got '0'"));
}

// The key itself has no line.
TEST(YamlReaderTest, AMissingKeyIsNamedWithTheLineOfItsMapping) {
  EXPECT_THAT(experiment_problems_of("epochs: 1\nmodel:\n  width: 2\n"),
              HasSubstr("run.yaml:3: model.name: missing; it is required"));
}

// Two messages for one mistake would confuse.
TEST(YamlReaderTest, AWrongValueIsNotReportedAsMissing) {
  EXPECT_THAT(experiment_problems_of("epochs: many\nmodel: {name: mlp}\n"), Not(HasSubstr("missing")));
}

// The mapping is not there, so there is only the name of the file.
TEST(YamlReaderTest, AKeyOfAnAbsentMappingIsMissing) {
  EXPECT_THAT(experiment_problems_of("epochs: 1\n"), HasSubstr("run.yaml: model.name: missing; it is required"));
}

// The common short form "model: mlp" is not supported.
TEST(YamlReaderTest, ATextInsteadOfAMappingIsNamed) {
  EXPECT_THAT(experiment_problems_of("epochs: 1\nmodel: mlp\n"),
              HasSubstr("run.yaml:2: model: expected a mapping of keys to values"));
}

// The key is known from Python; calling it unknown would suggest a misspelling.
TEST(YamlReaderTest, AnUnsupportedKeyIsReportedAsSuch) {
  EXPECT_THAT(experiment_problems_of("epochs: 1\nmodel: {name: mlp}\nfsdp: true\n"),
              HasSubstr("run.yaml:3: fsdp: not supported yet; remove it"));
}

// The order of problems is that of the reader's calls, so tests compare parts of the message.
TEST(YamlReaderTest, AllProblemsAreInOneError) {
  const auto message = experiment_problems_of("epochs: many\nlearning_rate: 1\nmodel:\n  width: wide\n  depth: 2\n");
  EXPECT_THAT(message, AllOf(HasSubstr("run.yaml:1: epochs"), HasSubstr("run.yaml:2: learning_rate: unknown key"),
                             HasSubstr("run.yaml:4: model.name: missing"),
                             HasSubstr("run.yaml:4: model.width: expected an integer"),
                             HasSubstr("run.yaml:5: model.depth: unknown key")));
}

// Problems in the entries must not stop the reading of the others.
TEST(YamlReaderTest, AListOfMappingsGivesAReaderPerEntry) {
  YamlProblems problems("run.yaml");
  YamlReader reader(YAML::Load("links:\n  - {from: 1}\n  - {from: x, too: 2}\n  - 7\nempty: {}\n"), "", problems);
  std::vector<int> found;
  for (auto& link : reader.mappings("links")) {
    found.push_back(link.optional<int>("from").value_or(-1));
    link.finish_keys();
  }
  EXPECT_THAT(found, ::testing::ElementsAre(1, -1, -1));
  EXPECT_TRUE(reader.mappings("none").empty());
  EXPECT_TRUE(reader.mappings("empty").empty());
  try {
    problems.throw_if_any();
    FAIL() << "no problem was found";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("run.yaml:3: links[1].from: expected an integer, got 'x'"),
                                    HasSubstr("run.yaml:3: links[1].too: unknown key"),
                                    HasSubstr("run.yaml:4: links[2]: expected a mapping"),
                                    HasSubstr("run.yaml:5: empty: expected a list of mappings")));
  }
}

// For mappings whose keys are names given by the user.
TEST(YamlReaderTest, KeysThatAreDataKeepTheOrderOfTheFile) {
  YamlProblems problems("run.yaml");
  EXPECT_THAT(YamlReader(YAML::Load("b: 1\na: 2\n"), "", problems).keys(), ::testing::ElementsAre("b", "a"));
  EXPECT_TRUE(YamlReader(YAML::Load("{}"), "", problems).keys().empty());
}

TEST(YamlReaderTest, AListOfIntegersIsReadAsOne) {
  YamlProblems problems("run.yaml");
  YamlReader reader(YAML::Load("shape: [4, 2]\nwrong: [4, x]\n"), "", problems);
  EXPECT_THAT(reader.optional<std::vector<int>>("shape"), ::testing::Optional(::testing::ElementsAre(4, 2)));
  EXPECT_FALSE(problems.any());
  EXPECT_EQ(reader.optional<std::vector<int>>("wrong"), std::nullopt);
  EXPECT_TRUE(problems.any());
}

TEST(YamlReaderTest, AFileThatIsNoMappingIsNamed) {
  EXPECT_THAT(experiment_problems_of("- epochs\n"), HasSubstr("run.yaml:1: the file: expected a mapping"));
}

// Reads a list of mappings, each with a list of numbers.
std::vector<int> widths_of(const std::string& text) {
  YamlProblems problems("run.yaml");
  YamlReader reader(YAML::Load(text), "", problems);
  std::vector<int> widths;
  for (auto& layer : reader.required_mappings("layers")) {
    for (const auto width : layer.optional<std::vector<int>>("widths").value_or(std::vector<int>{}))
      widths.push_back(width);
    layer.finish_keys();
  }
  reader.finish_keys();
  problems.throw_if_any();
  return widths;
}

std::string list_problems_of(const std::string& text) {
  try {
    widths_of(text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(YamlReaderTest, AListGivesItsMappings) {
  EXPECT_THAT(widths_of("layers:\n  - {widths: [1, 2]}\n  - {}\n  - {widths: [3]}\n"), ::testing::ElementsAre(1, 2, 3));
  EXPECT_THAT(widths_of("layers: []\n"), ::testing::IsEmpty());
}

// The index and the line: either may be easier to find.
TEST(YamlReaderTest, AProblemInAListIsNamedWithItsPlace) {
  EXPECT_EQ(list_problems_of("layers:\n  - {widths: [1]}\n  - {width: 1}\n  - {widths: [a]}\n  - wide\n"),
            "run.yaml:5: layers[3]: expected a mapping of keys to values, got a single value\n"
            "run.yaml:3: layers[1].width: unknown key; known: widths\n"
            "run.yaml:4: layers[2].widths: expected a list of integers, got [a]");
  EXPECT_EQ(list_problems_of("layers: {a: 1}\n"), "run.yaml:1: layers: expected a list of mappings, got a mapping");
  EXPECT_EQ(list_problems_of("a: 1\n"),
            "run.yaml:1: layers: missing; it is required\nrun.yaml:1: a: unknown key; known: layers");
}

}  // namespace
}  // namespace accel
