// The files of CI use commands and options that exist, and run what README.md shows. Every ctest entry has labels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "tests/architecture/commands.hpp"
#include "tests/architecture/shell.hpp"
#include "tests/architecture/sources.hpp"
#include "tests/support/artifacts.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing::ci_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSubsetOf;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using Lines = std::vector<std::string>;

constexpr const char* kGitHub = ".github/workflows/ci.yml";
constexpr const char* kRelease = ".github/workflows/release.yml";
constexpr const char* kGitLab = "configs/ci/gitlab-ci.yml";

YAML::Node read_yaml(const fs::path& file) { return YAML::LoadFile((source_dir() / file).string()); }

// Adds the lines of a text, or of each text of a list.
void add_lines(Lines& lines, const YAML::Node& node) {
  if (node && node.IsScalar()) {
    for (const auto& line : split_lines(node.as<std::string>())) lines.push_back(line);
  }
  for (const auto& entry : node&& node.IsSequence() ? node : YAML::Node()) add_lines(lines, entry);
}

// The commands of all steps of a job; a job of a matrix has one command in each entry of the matrix.
Lines commands_of_github_job(const YAML::Node& job) {
  Lines commands;
  for (const auto& step : job["steps"]) add_lines(commands, step["run"]);
  if (job["strategy"]) {
    for (const auto& entry : job["strategy"]["matrix"]["include"]) add_lines(commands, entry["command"]);
  }
  return commands;
}

Lines commands_of_gitlab() {
  Lines commands;
  for (const auto& job : read_yaml(kGitLab)) {
    if (!job.second.IsMap()) continue;
    for (const auto* part : {"before_script", "script", "after_script"}) add_lines(commands, job.second[part]);
  }
  return commands;
}

// A file of CI is not run by any test, so that a renamed command or preset would be found by a user only.
TEST(CiFilesTest, EveryCommandOptionAndPresetExists) {
  auto commands = commands_of_gitlab();
  const auto github = read_yaml(kGitHub);
  for (const auto& job : github["jobs"]) {
    for (const auto& command : commands_of_github_job(job.second)) commands.push_back(command);
  }
  const Declarations declared;
  const auto usage = run_shell("./dev --help").output, presets = text_of("CMakePresets.json");
  static const std::regex dev_command(R"(\./dev (\w+))"), preset(R"(--preset (\w+))");
  int count = 0;
  for (const auto& command : commands) {
    EXPECT_EQ(problems_of_command(declared, command), Lines());
    std::smatch match;
    if (std::regex_search(command, match, dev_command)) {
      ++count;
      EXPECT_THAT(usage, HasSubstr("\n  " + match[1].str() + " ")) << command;
    }
    if (std::regex_search(command, match, preset)) {
      EXPECT_THAT(presets, HasSubstr("{\"name\": \"" + match[1].str() + "\"")) << command;
    }
  }
  EXPECT_EQ(count, 52);  // twenty-six in each file
}

// The commands of ./dev among some lines.
std::set<std::string> commands_of_dev(const Lines& lines) {
  std::set<std::string> commands;
  std::copy_if(lines.begin(), lines.end(), std::inserter(commands, commands.end()),
               [](const auto& line) { return line.starts_with("./dev "); });
  return commands;
}

// What README.md and the guide claim of Python, CUDA, the wheel and the readers is tested at least once a day.
TEST(CiFilesTest, EveryNightRunsEachOptionOfTheTests) {
  const std::set<std::string> expected{"./dev test --oracle",
                                       "./dev test --python",
                                       "./dev test --long",
                                       "./dev test --preset dev",
                                       "./dev test --preset asan",
                                       "./dev test --cuda",
                                       "./dev test --torch 2.12",
                                       "./dev test --torch 2.13",
                                       "./dev test --torch 2.14",
                                       "./dev test --torch 2.15",
                                       "./dev build clang",
                                       "./dev build gcc",
                                       "./dev tidy HEAD~10",
                                       "./dev wheel --check",
                                       "./dev wheel --check --torch 2.4",
                                       "./dev wheel --check --torch 2.6",
                                       "./dev wheel --check --torch 2.8",
                                       "./dev wheel --check --torch 2.13",
                                       "./dev wheel --check --torch 2.15",
                                       "./dev wheel --machine aarch64",
                                       "./dev docs",
                                       "./dev fuzz 600"};
  EXPECT_EQ(commands_of_dev(commands_of_github_job(read_yaml(kGitHub)["jobs"]["thorough"])), expected);
  Lines gitlab;
  for (const auto& job : read_yaml(kGitLab)) {
    if (job.second.IsMap() && job.second["extends"]) add_lines(gitlab, job.second["script"]);
  }
  EXPECT_EQ(commands_of_dev(gitlab), expected);
}

// A tag is made by a person; all that follows is this file.
TEST(CiFilesTest, ATagMakesPackagesAndWheels) {
  const auto jobs = read_yaml(kRelease)["jobs"];
  const Declarations declared;
  std::set<std::string> commands;
  for (const auto& job : jobs) commands.merge(commands_of_dev(commands_of_github_job(job.second)));
  for (const auto& command : commands) EXPECT_EQ(problems_of_command(declared, command), Lines());
  EXPECT_EQ(commands, (std::set<std::string>{"./dev package", "./dev package --notes > notes.md",
                                             "./dev wheel --machine ${{ matrix.machine }}"}));
  EXPECT_THAT(split_lines(run_shell("./dev package --notes").output), Contains(StartsWith("- ")));
}

// The lines of the first shell block of README.md, without their comments.
Lines readme_commands() {
  const auto readme = text_of("README.md");
  const std::string open = "```sh\n";
  const auto begin = readme.find(open) + open.size();
  auto lines = split_lines(readme.substr(begin, readme.find("```", begin) - begin));
  for (auto& line : lines) line.erase(line.find_last_not_of(' ', line.find('#') - 1) + 1);
  return lines;
}

TEST(CiFilesTest, APushRunsTheCommandsOfTheReadme) {
  const auto expected = readme_commands();
  ASSERT_EQ(expected, Lines({"./dev sim", "./dev test"}));
  const auto github = read_yaml(kGitHub)["jobs"];
  EXPECT_THAT(expected, IsSubsetOf(commands_of_github_job(github["test"])));
  Lines gitlab, changed;
  add_lines(gitlab, read_yaml(kGitLab)["test"]["script"]);
  EXPECT_EQ(gitlab, expected);
  const std::set<std::string> compiled{"./dev clang \"$since\""};
  EXPECT_EQ(commands_of_dev(commands_of_github_job(github["changed"])), compiled);
  add_lines(changed, read_yaml(kGitLab)["changed"]["script"]);
  EXPECT_EQ(commands_of_dev(changed), compiled);
  EXPECT_THAT(split_lines(text_of(".ci/run")), Contains("exec ./dev test"));
}

// The image runs one command of README.md by default, and the other as its first line shows.
TEST(CiFilesTest, TheDockerfileUsesCommandsAndFilesThatExist) {
  const Declarations declared;
  // CMD ["./dev", "sim"] becomes CMD ./dev sim, and comments are checked too.
  const auto text = std::regex_replace(text_of("configs/Dockerfile"), std::regex(R"([#",\[\]])"), "");
  int count = 0;
  for (const auto& line : split_lines(text)) {
    const auto command = line.find("./dev ");
    if (command != std::string::npos) EXPECT_EQ(problems_of_command(declared, line.substr(command)), Lines());
    std::smatch match;
    if (std::regex_match(line, match, std::regex("COPY (?:--chown=[^ ]+ )?([^ ]+) .*"))) {
      ++count;
      EXPECT_TRUE(fs::exists(source_dir() / match[1].str())) << line;
    }
  }
  EXPECT_EQ(count, 4);
  for (const auto& command : readme_commands()) EXPECT_THAT(text, HasSubstr(command));
  EXPECT_THAT(split_lines(text_of(".dockerignore")), Contains("build"));  // its files name folders of the host
}

// The jobs keep the folders that ./dev uses, and upload the one that `./dev test` fills.
TEST(CiFilesTest, CachesAndArtifactsAreTheFoldersOfDev) {
  EXPECT_THAT(text_of("dev"), HasSubstr("ACCEL_ARTIFACTS=build/artifacts\n"));
  EXPECT_THAT(text_of("dev"), HasSubstr("xml=$ACCEL_ARTIFACTS/junit-$folder.xml\n"));
  const auto github = read_yaml(kGitHub);
  for (const auto* job : {"test", "thorough"}) {
    std::set<std::string> paths;
    for (const auto& step : github["jobs"][job]["steps"]) {
      if (step["with"] && step["with"]["path"]) paths.insert(step["with"]["path"].as<std::string>());
    }
    EXPECT_EQ(paths, (std::set<std::string>{".cache/accel", ".cache/ccache", "build/artifacts"})) << job;
  }
  const auto gitlab = read_yaml(kGitLab)["default"];
  EXPECT_EQ(gitlab["cache"][0]["paths"][0].as<std::string>(), ".cache/accel");
  EXPECT_EQ(gitlab["cache"][1]["paths"][0].as<std::string>(), ".cache/ccache");
  EXPECT_EQ(gitlab["artifacts"]["paths"][0].as<std::string>(), "build/artifacts");
  EXPECT_EQ(gitlab["artifacts"]["reports"]["junit"].as<std::string>(), "build/artifacts/junit-*.xml");
}

// A script that is missing or not executable would be found by a user only.
TEST(CiFilesTest, EveryCommandOfTheUsageRunsAFunctionOrAScriptThatExists) {
  const Declarations declared;
  const auto usage = text_of("configs/dev/usage.txt"), dev = text_of("dev");
  static const std::regex command("\n  (\\w+) "), script("configs/dev/\\w+\\.sh");
  int commands = 0, scripts = 0;
  for (std::sregex_iterator match(usage.begin(), usage.end(), command), none; match != none; ++match, ++commands)
    EXPECT_EQ(problems_of_command(declared, "./dev " + (*match)[1].str()), Lines());
  for (std::sregex_iterator match(dev.begin(), dev.end(), script), none; match != none; ++match, ++scripts) {
    const auto path = source_dir() / match->str();
    ASSERT_TRUE(fs::exists(path)) << path;
    const bool is_sourced = path.filename() == "common.sh";
    EXPECT_NE((fs::status(path).permissions() & fs::perms::owner_exec) != fs::perms::none, is_sourced) << path;
  }
  EXPECT_EQ(commands, 17);
  EXPECT_GT(scripts, 7);
}

// A list that no script installs is one that a fresh machine lacks.
TEST(CiFilesTest, DevInstallsEveryListOfPackages) {
  auto scripts = text_of("dev");
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/dev")) scripts += text_of(entry.path());
  int lists = 0;
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/packages")) {
    if (entry.is_directory()) continue;  // recipes
    auto name = entry.path().filename().string();
    if (name.starts_with("libtorch-")) name = "libtorch-";  // by the lane and the version
    EXPECT_THAT(scripts, HasSubstr(name));
    ++lists;
  }
  EXPECT_GT(lists, 9);
}

// A target without a corpus would not be fuzzed, and a corpus without a target would stop every run.
TEST(CiFilesTest, DevFuzzesTheTargetsThatCMakeBuilds) {
  const auto cmake = text_of("properties/CMakeLists.txt");
  std::set<std::string> targets, corpora;
  static const std::regex lists(R"((?:set\(fuzzed|list\(APPEND fuzzed) ([a-z_ ]+)\))");
  for (std::sregex_iterator match(cmake.begin(), cmake.end(), lists), none; match != none; ++match) {
    std::istringstream words((*match)[1].str());
    for (std::string word; words >> word;) targets.insert(word);
  }
  for (const auto& entry : fs::directory_iterator(source_dir() / "properties/fuzz/corpus")) {
    if (entry.is_directory()) corpora.insert(entry.path().filename().string());
  }
  EXPECT_EQ(corpora, targets);
  EXPECT_GT(targets.size(), 10U);
  EXPECT_EQ(WEXITSTATUS(run_shell("./dev fuzz 0").status), 2);
  const auto run = run_shell("./dev fuzz 60 pickles");
  EXPECT_EQ(WEXITSTATUS(run.status), 2);
  EXPECT_THAT(run.output, HasSubstr("unknown target 'pickles'; expected one of: csv idx"));
}

// --- versions of LibTorch --------------------------------------------------------------------------------------------

TEST(TorchVersionsTest, DevCMakeAndTheGuideSupportTheSame) {
  const auto guide = text_of("reference/guide/getting_started.md");
  const auto github = text_of(kGitHub);
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(source_dir() / "configs/packages")) {
    std::smatch match;
    const auto name = entry.path().filename().string();
    if (std::regex_match(name, match, std::regex("libtorch-cpu-(.*)\\.txt"))) others.push_back(match[1]);
  }
  EXPECT_THAT(others, UnorderedElementsAre("2.12", "2.13", "2.14", "2.15"));
  EXPECT_THAT(guide, HasSubstr("\n| 2.11 |"));
  for (const auto& version : others) {
    EXPECT_NE(guide.find("\n| " + version + " |"), std::string::npos) << version;
    EXPECT_THAT(text_of("configs/packages/libtorch-cpu-" + version + ".txt"), HasSubstr("\ntorch==" + version + "."));
    EXPECT_THAT(github, HasSubstr("./dev test --torch " + version));
  }
}

TEST(TorchVersionsTest, AnUnknownVersionIsAUsageError) {
  for (const auto* command : {"setup", "build", "test"}) {
    const auto run = run_shell("./dev " + std::string(command) + " --torch 2.9");
    EXPECT_EQ(WEXITSTATUS(run.status), 2);
    EXPECT_THAT(run.output, HasSubstr("unknown version '2.9'; expected one of: 2.11 2.12 2.13 2.14 2.15"));
  }
}

// --- labels and artifacts --------------------------------------------------------------------------------------------

// The words between quotes in the line `labels="..."` of ./dev.
std::set<std::string> labels_of_dev() {
  std::smatch match;
  const auto text = text_of("dev");
  EXPECT_TRUE(std::regex_search(text, match, std::regex("\nlabels=\"([a-z ]+)\"")));
  std::set<std::string> labels;
  std::istringstream words(match[1].str());
  for (std::string word; words >> word;) labels.insert(word);
  return labels;
}

// The entries of this build as ctest describes them.
YAML::Node ctest_entries() {
  const auto build = fs::path(std::getenv("ACCEL_BIN_DIR")).parent_path().string();
  // In a separate folder, because ctest truncates the log of the ctest that runs this test.
  const TemporaryFolder folder;
  (void)folder.write("CTestTestfile.cmake", "subdirs(\"" + build + "\")\n");
  const auto shown = run_shell("ctest --test-dir '" + folder.path() + "' --show-only=json-v1 2>/dev/null");
  EXPECT_EQ(shown.status, 0) << shown.output;
  return YAML::Load(shown.output)["tests"];
}

YAML::Node property_of(const YAML::Node& entry, const std::string& name) {
  for (const auto& property : entry["properties"]) {
    if (property["name"].as<std::string>() == name) return property["value"];
  }
  return YAML::Node();
}

// `./dev test --label` would silently leave out an entry without a label, or with another one.
TEST(LabelsTest, EveryEntryHasLabelsThatDevAccepts) {
  const auto known = labels_of_dev();
  std::set<std::string> seen;
  const auto entries = ctest_entries();
  ASSERT_GT(entries.size(), 80U);
  for (const auto& entry : entries) {
    const auto labels = property_of(entry, "LABELS");
    ASSERT_TRUE(labels.IsSequence() && labels.size() > 0) << entry["name"];
    const auto names = labels.as<Lines>();
    EXPECT_THAT(names, IsSubsetOf(known)) << entry["name"];
    seen.insert(names.begin(), names.end());
  }
  for (const auto* label : {"unit", "law", "equivalence", "program", "oracle", "slow"})
    EXPECT_THAT(seen, Contains(label));
}

// A misspelled name in the table would leave a slow test to the end of the run.
TEST(LabelsTest, EverySlowTestIsAnEntryThatStartsEarly) {
  std::map<std::string, double> seconds, costs;
  for (const auto& line : split_lines(text_of("tests/slow_tests.txt"))) {
    if (line.starts_with('#')) continue;
    const auto space = line.find(' ');
    EXPECT_TRUE(seconds.emplace(line.substr(0, space), std::stod(line.substr(space))).second) << line;
  }
  EXPECT_GT(seconds.size(), 5U);
  for (const auto& entry : ctest_entries()) {
    const auto cost = property_of(entry, "COST");
    if (cost.IsScalar()) costs[entry["name"].as<std::string>()] = cost.as<double>();
  }
  EXPECT_EQ(costs, seconds);
}

TEST(LabelsTest, AnUnknownLabelIsAUsageError) {
  const auto run = run_shell("./dev test --label quick");
  EXPECT_EQ(WEXITSTATUS(run.status), 2);
  EXPECT_THAT(run.output, HasSubstr("unknown label 'quick'; expected one of: unit law equivalence"));
}

TEST(ArtifactsTest, APathIsInTheFolderThatDevTestNames) {
  const TemporaryFolder folder;
  const auto* outer = std::getenv("ACCEL_ARTIFACTS");
  const std::string saved = outer == nullptr ? "" : outer;
  setenv("ACCEL_ARTIFACTS", folder.path("new").c_str(), 1);
  EXPECT_EQ(artifact_path("reports/page.html"), fs::path(folder.path("new/reports/page.html")));
  EXPECT_TRUE(fs::is_directory(folder.path("new/reports")));
  setenv("ACCEL_ARTIFACTS", "", 1);
  EXPECT_EQ(artifact_path("reports/page.html"), std::nullopt);
  setenv("ACCEL_ARTIFACTS", saved.c_str(), 1);
}

}  // namespace
}  // namespace accel::testing::ci_test
