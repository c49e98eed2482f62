// What is wrong with a command line, a file or the environment ends the run before anything has run: exit code 2, and a
// message that names the place, what was expected and what was given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::bad_input_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::chrono::seconds kLimit{20};
constexpr const char* kGood =
    "task: fashion_mnist\n"
    "limit: 64\n"
    "eval_limit: 16\n"
    "model: {name: mlp, hidden: 8}\n"
    "optimizer: {name: sgd, lr: 0.1}\n"
    "batch_size: 8\n"
    "epochs: 1\n"
    "max_steps: 2\n"
    "seed: 1\n";

CommandResult sim_run(std::vector<std::string> arguments, const std::map<std::string, std::string>& environment = {}) {
  arguments.insert(arguments.begin(), bin("sim-run"));
  return run_command(arguments, {.environment = environment, .limit = kLimit});
}

template <typename Matcher>
void expect_refused(const CommandResult& run, const Matcher& message) {
  EXPECT_EQ(run.exit_code, 2) << run.error;
  EXPECT_THAT(run.error, message);
  EXPECT_THAT(run.output, IsEmpty());
}

class BadInputTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string good() const { return folder_.write("good.yaml", kGood); }
  [[nodiscard]] std::string bad(const std::string& content) const { return folder_.write("bad.yaml", content); }
  // The good file with one line more, or another in its place.
  [[nodiscard]] std::string with(const std::string& line) const {
    const auto key = line.substr(0, line.find(':') + 1);
    std::string text;
    std::istringstream in(kGood);
    for (std::string kept; std::getline(in, kept);) {
      if (kept.rfind(key, 0) != 0) text += kept + "\n";
    }
    return bad(text + line + "\n");
  }

  TemporaryFolder folder_;
};

// --- the experiment file ---------------------------------------------------------------------------------------------

TEST_F(BadInputTest, GoodFileRuns) { EXPECT_EQ(sim_run({good()}).exit_code, 0); }

TEST_F(BadInputTest, UnknownKeyIsNamedWithItsLineAndTheKnownOnes) {
  expect_refused(sim_run({with("batch_sise: 8")}),
                 HasSubstr("bad.yaml:10: batch_sise: unknown key; known: accelerator, batch_size"));
  expect_refused(sim_run({with("model: {name: mlp, hiden: 8}")}), HasSubstr("bad.yaml:9: model.hiden: unknown key"));
  expect_refused(sim_run({with("model: {name: cnn, hidden: 8}")}), HasSubstr("model.hidden: unknown key"));
}

TEST_F(BadInputTest, WrongTypeSaysWhatWasExpectedAndGiven) {
  expect_refused(sim_run({with("epochs: many")}), HasSubstr("bad.yaml:9: epochs: expected 1 or more, got 'many'"));
  expect_refused(sim_run({with("shuffle: 3")}), HasSubstr("bad.yaml:10: shuffle: expected true or false, got '3'"));
  expect_refused(sim_run({with("limit: [1, 2]")}), HasSubstr("limit: expected 1 or more, got a list"));
  expect_refused(sim_run({with("model: mlp")}), HasSubstr("model: expected a mapping"));
  expect_refused(sim_run({with("batch_size: 1.5")}), HasSubstr("batch_size: expected 1 or more, got '1.5'"));
}

TEST_F(BadInputTest, ImpossibleValueIsRefused) {
  expect_refused(sim_run({with("batch_size: 0")}), HasSubstr("batch_size: expected 1 or more, got '0'"));
  expect_refused(sim_run({with("model: {name: mlp, dropout: 1.0}")}),
                 HasSubstr("model.dropout: expected a number in [0, 1)"));
  expect_refused(sim_run({with("optimizer: {name: sgd, lr: .nan}")}),
                 HasSubstr("optimizer.lr: expected a number of 0 or more"));
  expect_refused(sim_run({with("model: {name: transformer}")}),
                 HasSubstr("model.name: expected mlp or cnn, got 'transformer'"));
  expect_refused(sim_run({with("task: cifar")}),
                 HasSubstr("task: expected fashion_mnist or cifar_like or char_gpt, got 'cifar'"));
  expect_refused(sim_run({with("seed: -1")}), HasSubstr("seed: expected 0 or more"));
}

TEST_F(BadInputTest, AnOptimizersArgumentsAreThoseOfPythonsClass) {
  expect_refused(sim_run({with("optimizer: {name: rprop, lr: 0.1, etas: [0.5], momentum: 1}")}),
                 AllOf(HasSubstr("optimizer.etas: expected a list of two finite numbers, got a list"),
                       HasSubstr("optimizer.momentum: unknown key; known: ")));
  expect_refused(sim_run({with("optimizer: {name: nadam, lr: 0.1, betas: [0.9, 1], eps: -1}")}),
                 AllOf(HasSubstr("optimizer.betas: expected two numbers in [0, 1)"),
                       HasSubstr("optimizer.eps: expected a number of 0 or more")));
  expect_refused(sim_run({with("optimizer: {name: sgd, lr: 0.1, maximize: true}")}),
                 HasSubstr("optimizer.maximize: unknown key"));
  expect_refused(sim_run({with("optimizer: {name: lion}")}),
                 AllOf(HasSubstr("optimizer.name: expected one of adadelta, "), HasSubstr("optimizer.lr: missing")));
}

TEST_F(BadInputTest, AllThatIsWrongWithTheAcceleratorsOptionsIsInOneMessage) {
  expect_refused(
      sim_run({with("accelerator: {gradient_accumulation_steps: 2, gradient_accumulation_plugin: {num_steps: 0}, "
                    "loss_weighting: fair, grad_scaler_kwargs: {growth_factor: 1}, "
                    "gradient_guard: {skip_norm_above: 0}, ddp_kwargs: {comm_hook: zip, bucket_cap_mb: 0}, "
                    "autocast_kwargs: {dtype: half}}")}),
      AllOf(HasSubstr("num_steps: expected 1 or more"), HasSubstr("excluded by gradient_accumulation_plugin"),
            HasSubstr("loss_weighting: expected accelerate or exact"),
            HasSubstr("growth_factor: expected a number above 1"),
            HasSubstr("skip_norm_above: expected a number above 0"), HasSubstr("comm_hook: expected"),
            HasSubstr("bucket_cap_mb: expected 1 or more"), HasSubstr("autocast_kwargs.dtype: unknown key")));
}

TEST_F(BadInputTest, SplitBatchesThatDoNotDivideByTheRanksAreRefused) {
  expect_refused(
      sim_run({"--ranks", "3", with("dataloader_config: {split_batches: true}")}),
      AllOf(HasSubstr("batch_size: split_batches: a batch of 8 does not divide by 3 ranks"), HasSubstr("bad.yaml:6:")));
}

TEST_F(BadInputTest, AllProblemsAreInOneMessageEachWithItsLine) {
  const auto file =
      bad("task: fashion_mnist\nmodel: {name: mlp}\noptimizer: {name: sgd}\nbatch_size: x\nepoch: 1\nclip_grad_norm: "
          "-1\nclip_grad_value: 0\n");
  expect_refused(sim_run({file}),
                 AllOf(HasSubstr("bad.yaml:3: optimizer.lr: missing"),
                       HasSubstr("bad.yaml:4: batch_size: expected 1 or more, got 'x'"),
                       HasSubstr("bad.yaml:5: epoch: unknown key"), HasSubstr("epochs: missing"),
                       HasSubstr("seed: missing"), HasSubstr("bad.yaml:6: clip_grad_norm: expected a number above 0"),
                       HasSubstr("bad.yaml:7: clip_grad_value: expected a number above 0")));
  const auto sharded =
      bad("task: fashion_mnist\nmodel: {name: mlp}\noptimizer: {name: sgd, lr: 1}\nbatch_size: 8\nepochs: 1\nseed: "
          "1\nclip_grad_value: 1\naccelerator: {fsdp_plugin: {fsdp_version: 2}}\n");
  expect_refused(sim_run({sharded}), HasSubstr("bad.yaml:7: clip_grad_value: not with fsdp_plugin"));
}

// What is told as known, each name of it.
std::set<std::string> known_names(const std::string& message) {
  static const std::regex list(R"((?:known: |expected one of |expected )([a-z_0-9]+(?:(?:, | or )[a-z_0-9]+)+))"),
      name(R"([a-z_0-9]{3,})");
  std::set<std::string> names;
  for (std::sregex_iterator match(message.begin(), message.end(), list), none; match != none; ++match) {
    const auto text = (*match)[1].str();
    names.insert(std::sregex_token_iterator(text.begin(), text.end(), name), std::sregex_token_iterator());
  }
  names.erase("got");  // "expected mlp or cnn, got 'none'"
  return names;
}

TEST_F(BadInputTest, TheGuideToExperimentFilesHasEveryNameThatThereIs) {
  const std::string rest =
      "optimizer: {name: none}\nscheduler: {name: none}\nunknown: 1\naccelerator: {unknown: 1}\ndataloader_config: "
      "{unknown: 1}\nmodel: {name: none}\n";
  auto names = known_names(sim_run({bad("task: none\n" + rest)}).error);
  EXPECT_GT(names.size(), 80U);
  for (const auto* task : {"fashion_mnist", "cifar_like", "char_gpt"})
    names.merge(known_names(sim_run({bad("task: " + std::string(task) + "\n" + rest)}).error));
  std::ifstream in(source("configs/train/README.md"));
  const std::string guide{std::istreambuf_iterator<char>(in), {}};
  for (const auto& name : names)
    EXPECT_THAT(guide, ::testing::AnyOf(HasSubstr("`" + name + "`"), HasSubstr("**`" + name + "`**")));
}

TEST_F(BadInputTest, EmptyFileLacksAllThatIsRequired) {
  expect_refused(sim_run({bad("")}),
                 AllOf(HasSubstr("task: missing"), HasSubstr("model: missing"), HasSubstr("seed: missing")));
}

TEST_F(BadInputTest, MissingFileIsNamed) {
  expect_refused(sim_run({folder_.path("none.yaml")}), HasSubstr("none.yaml: no such file"));
}

TEST_F(BadInputTest, FolderIsNoExperiment) { expect_refused(sim_run({folder_.path()}), HasSubstr("is a folder")); }

TEST_F(BadInputTest, FileThatIsNotYamlIsRefusedWithTheLine) {
  expect_refused(sim_run({bad("task: fashion_mnist\nmodel: [1\nbatch_size: 2")}),
                 AllOf(HasSubstr("bad.yaml:3:"), HasSubstr("not YAML")));
  expect_refused(sim_run({bad("- task\n- model\n")}), HasSubstr("expected a mapping"));
  expect_refused(sim_run({bad(std::string("\x01\x02\xff\x00\x7f binary", 12))}), HasSubstr("bad.yaml"));
}

TEST_F(BadInputTest, KeyThatIsNoTextIsRefusedWithItsLine) {
  expect_refused(sim_run({bad(std::string(kGood) + "? [a, b]\n: 3\n")}), HasSubstr("bad.yaml:10:"));
  expect_refused(sim_run({with("model: {name: mlp, {a: b}: 3}")}),
                 HasSubstr("bad.yaml:9: model: a key that is no name"));
}

TEST_F(BadInputTest, KeyGivenTwiceIsRefused) {
  expect_refused(sim_run({bad(std::string(kGood) + "batch_size: 16\n")}),
                 HasSubstr("bad.yaml:10: batch_size: given twice"));
}

// --- the other tasks -------------------------------------------------------------------------------------------------

constexpr const char* kGpt = "model: {name: gpt, layers: 1, heads: 2, width: 8, block_size: 16}";
constexpr const char* kGptOf300 = "model: {name: gpt, layers: 1, heads: 2, width: 8, block_size: 300}";

TEST_F(BadInputTest, ModelOfAnotherTaskIsRefused) {
  expect_refused(sim_run({with(kGpt)}), HasSubstr("bad.yaml:9: model.name: expected mlp or cnn, got 'gpt'"));
  expect_refused(sim_run({"--set", "task=char_gpt", good()}), HasSubstr("model.name: expected gpt, got 'mlp'"));
  expect_refused(sim_run({"--set", "task=cifar_like", good()}), HasSubstr("model.name: expected resnet18, got 'mlp'"));
}

TEST_F(BadInputTest, AllThatIsWrongWithALanguageModelIsInOneMessage) {
  const auto file = with("model: {name: gpt, layers: 0, heads: 3, width: 8, bias: 2, hidden: 3}");
  expect_refused(sim_run({"--set", "task=char_gpt", "--set",
                          "sample={length: 0, prompt: '', temperature: 0, top_k: 0, seed: -1, words: 3}", "--set",
                          "data_dir=x", file}),
                 AllOf(HasSubstr("model.layers: expected 1 or more, got '0'"),
                       HasSubstr("model.heads: a width of 8 does not divide by 3 heads"),
                       HasSubstr("model.block_size: missing"), HasSubstr("model.bias: expected true or false, got '2'"),
                       HasSubstr("model.hidden: unknown key"), HasSubstr("sample.length: expected 1 or more, got '0'"),
                       HasSubstr("sample.prompt: expected a text that is not empty"),
                       HasSubstr("sample.temperature: expected a number above 0"),
                       HasSubstr("sample.top_k: expected 1 or more"), HasSubstr("sample.seed: expected 0 or more"),
                       HasSubstr("sample.words: unknown key"), HasSubstr("data_dir: unknown key")));
}

TEST_F(BadInputTest, KeysOfALanguageModelAreUnknownToImages) {
  expect_refused(sim_run({"--set", "sample={}", "--set", "data_file=x", good()}),
                 AllOf(HasSubstr("sample: unknown key"), HasSubstr("data_file: unknown key")));
  expect_refused(
      sim_run({"--set", "task=cifar_like", "--set", "model={name: resnet18, width: 0, dropout: 0.5}", good()}),
      AllOf(HasSubstr("model.width: expected 1 or more, got '0'"), HasSubstr("model.dropout: unknown key")));
}

TEST_F(BadInputTest, TextThatIsMissingOrTooShortIsRefused) {
  expect_refused(sim_run({"--set", "task=char_gpt", "--set", "data_file=/no/text", with(kGpt)}),
                 HasSubstr("/no/text: cannot be opened"));
  const auto text = folder_.write("text.txt", std::string(3000, 'x'));
  expect_refused(sim_run({"--set", "task=char_gpt", "--set", "data_file=" + text, with(kGptOf300)}),
                 HasSubstr("text.txt: 3000 bytes; expected at least 3001"));
  folder_.write("text.txt", std::string(3001, 'x'));
  EXPECT_EQ(
      sim_run({"--ranks", "1", "--set", "task=char_gpt", "--set", "data_file=" + text, with(kGptOf300)}).exit_code, 0);
}

TEST_F(BadInputTest, ImageFoldersWithoutImagesAreRefused) {
  std::filesystem::create_directories(folder_.path("train/cat"));
  expect_refused(sim_run({"--set", "task=cifar_like", "--set", "model={name: resnet18}", "--set",
                          "data_dir=" + folder_.path(), good()}),
                 HasSubstr("cat"));
}

// --- the data --------------------------------------------------------------------------------------------------------

std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string idx(const std::vector<std::uint32_t>& sizes, std::size_t num_bytes) {
  std::string text{0, 0, 8, static_cast<char>(sizes.size())};
  for (const auto size : sizes) text += big_endian(size);
  for (std::size_t index = 0; index < num_bytes; ++index)
    text += static_cast<char>(sizes.size() == 1 ? index % 10 : index * 31);
  return text;
}

class BadDataTest : public BadInputTest {
 protected:
  BadDataTest() {
    data_.write("train-images-idx3-ubyte", idx({100, 28, 28}, 100 * 784));
    data_.write("train-labels-idx1-ubyte", idx({100}, 100));
    data_.write("t10k-images-idx3-ubyte", idx({20, 28, 28}, 20 * 784));
    data_.write("t10k-labels-idx1-ubyte", idx({20}, 20));
  }
  [[nodiscard]] CommandResult run() const { return sim_run({with("data_dir: " + data_.path())}); }
  TemporaryFolder data_;
};

TEST_F(BadDataTest, PlainIdxFilesAreReadUpToTheLimit) {
  const auto result = run();
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["eval_samples"], 16);
}

TEST_F(BadDataTest, LimitBeyondTheDataTakesAllOfIt) {
  const auto result =
      sim_run({"--set", "eval_limit=1000", "--set", "limit=1000000", with("data_dir: " + data_.path())});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(nlohmann::json::parse(result.output)["eval_samples"], 20);
}

TEST_F(BadDataTest, MissingFolderIsNamedWithThePackageThatProvidesIt) {
  expect_refused(sim_run({with("data_dir: /does/not/exist")}),
                 AllOf(HasSubstr("data_dir: /does/not/exist/"), HasSubstr("apt-get install")));
}

TEST_F(BadDataTest, MissingFileIsNamed) {
  std::filesystem::remove(data_.path("t10k-labels-idx1-ubyte"));
  expect_refused(run(), HasSubstr("t10k-labels-idx1-ubyte is missing"));
}

TEST_F(BadDataTest, TruncatedFileIsRefused) {
  data_.write("train-images-idx3-ubyte", idx({100, 28, 28}, 1000));
  expect_refused(run(),
                 AllOf(HasSubstr("train-images-idx3-ubyte: the file is short or damaged"), HasSubstr("1000 read")));
}

TEST_F(BadDataTest, TruncatedHeaderIsRefused) {
  data_.write("train-labels-idx1-ubyte", idx({100}, 0).substr(0, 5));
  expect_refused(run(), HasSubstr("train-labels-idx1-ubyte: the file is short or damaged"));
}

TEST_F(BadDataTest, DamagedGzipIsRefused) {
  std::filesystem::remove(data_.path("t10k-labels-idx1-ubyte"));
  data_.write("t10k-labels-idx1-ubyte.gz",
              std::string("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03garbage that no stream is", 35));
  expect_refused(run(), HasSubstr("t10k-labels-idx1-ubyte.gz: the file is short or damaged"));
}

TEST_F(BadDataTest, FileOfAnotherKindIsRefused) {
  data_.write("train-images-idx3-ubyte", "this is no idx file, but text");
  expect_refused(run(), HasSubstr("train-images-idx3-ubyte: not an idx file (it begins 74 68 69 73; expected 00 00"));
  data_.write("train-images-idx3-ubyte", idx({100}, 100));
  expect_refused(run(),
                 HasSubstr("train-images-idx3-ubyte: not an idx file of bytes with 3 dimensions, but of Byte with 1"));
}

TEST_F(BadDataTest, HeaderThatPromisesTerabytesIsRefusedBeforeTheyAreAllocated) {
  data_.write("train-images-idx3-ubyte", idx({0xffffffff, 28, 28}, 1000));
  auto file = with("data_dir: " + data_.path());
  expect_refused(sim_run({"--set", "limit=~", file}), HasSubstr("train-images-idx3-ubyte"));
  data_.write("train-images-idx3-ubyte", idx({100, 0xffffffff, 0xffffffff}, 1000));
  expect_refused(sim_run({file}),
                 HasSubstr("train-images-idx3-ubyte: images of 4294967295x4294967295; expected 28x28"));
}

TEST_F(BadDataTest, ImagesOfAnotherSizeOrAnotherNumberThanLabelsAreRefused) {
  data_.write("t10k-labels-idx1-ubyte", idx({10}, 10));
  expect_refused(run(), HasSubstr("10 labels"));
  data_.write("train-images-idx3-ubyte", idx({100, 14, 14}, 100 * 196));
  expect_refused(run(), HasSubstr("images of 14x14; expected 28x28"));
}

TEST_F(BadDataTest, LabelOutsideTheTenClassesIsRefused) {
  data_.write("train-labels-idx1-ubyte", idx({100}, 0) + std::string(100, '\x0a'));
  expect_refused(run(), AllOf(HasSubstr("train-labels-idx1-ubyte"), HasSubstr("label 10")));
}

// --- the command line ------------------------------------------------------------------------------------------------

TEST_F(BadInputTest, NumberOfRanksOutsideTheRangeIsRefused) {
  for (const auto* backend : {"sim", "gloo"}) {
    expect_refused(sim_run({"--backend", backend, "--ranks", "0", good()}),
                   HasSubstr("--ranks: 0 ranks; expected 1 to"));
    expect_refused(sim_run({"--backend", backend, "--ranks", "-3", good()}), HasSubstr("--ranks"));
    expect_refused(sim_run({"--backend", backend, "--ranks", "100000", good()}),
                   HasSubstr("--ranks: 100000 ranks; expected 1 to"));
  }
  expect_refused(sim_run({"--ranks", "abc", good()}), AllOf(HasSubstr("--ranks"), HasSubstr("abc")));
}

TEST_F(BadInputTest, UnknownOptionOrBackendIsNamed) {
  expect_refused(sim_run({"--rank", "3", good()}), HasSubstr("--rank"));
  expect_refused(sim_run({"--backend", "mpi", good()}), AllOf(HasSubstr("--backend"), HasSubstr("mpi")));
}

TEST_F(BadInputTest, RunWithoutAnExperimentIsRefused) { expect_refused(sim_run({}), HasSubstr("EXPERIMENT")); }

TEST_F(BadInputTest, AllThatIsWrongWithARehearsalIsInOneMessage) {
  expect_refused(
      sim_run({"--schedule", "random", "--pct-depth", "0", good()}),
      AllOf(HasSubstr("--pct-depth: expected 1 to 1000, got 0"), HasSubstr("of --schedule pct, not of random")));
  const auto run = sim_run({"--ranks", "0,3", "--schedule", "backwards", "--clock", "virtual", "--faults", "none.yaml",
                            "--diagnosis", "/no/folder/d.json", "--timeline", "/", good()});
  expect_refused(
      run, AllOf(HasSubstr("--ranks: 0 ranks"), HasSubstr("'backwards' is no schedule"),
                 HasSubstr("--clock virtual: needs --network"), HasSubstr("--faults: none.yaml is no file"),
                 HasSubstr("--diagnosis: /no/folder is not a folder"), HasSubstr("--timeline: / cannot be written")));
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2,4", "--schedule", "random", good()}),
                 AllOf(HasSubstr("--ranks: one number"), HasSubstr("--schedule: only the simulator has this option")));
  expect_refused(sim_run({"explore", "--schedules", "0", "--schedule", "round-robin", "--timeline", "t.json", good()}),
                 AllOf(HasSubstr("--schedules: expected 1 or more"),
                       HasSubstr("--schedule round-robin: is one schedule"), HasSubstr("--timeline: of one run")));
  expect_refused(sim_run({"--report", good() + "/page", good()}), HasSubstr("is not a folder that can be written to"));
  expect_refused(sim_run({"explore"}), HasSubstr("expected an experiment file"));
}

TEST_F(BadInputTest, WhatIsNotBuiltYetSaysSo) {
  expect_refused(sim_run({with("accelerator: {mixed_precision: fp4}")}),
                 HasSubstr("mixed_precision: expected no, fp16, bf16 or fp8, got 'fp4'"));
  expect_refused(
      sim_run({with("accelerator: {mixed_precision: fp8, ao_recipe_kwargs: {config: {recipe_name: columns}, "
                    "enable_fsdp_float8_all_gather: 3}}")}),
      AllOf(HasSubstr("recipe_name: float8 recipe: expected tensorwise, rowwise or rowwise_with_gw_hp, got 'columns'"),
            HasSubstr("enable_fsdp_float8_all_gather")));
  expect_refused(sim_run({with("dataloader_config: {order: random}")}),
                 HasSubstr("order: expected accelerate or elastic"));
}

TEST_F(BadInputTest, SetWithBadSyntaxIsRefused) {
  expect_refused(sim_run({"--set", "batch_size", good()}),
                 HasSubstr("--set: expected key.path=value, got 'batch_size'"));
  expect_refused(sim_run({"--set", "=3", good()}), HasSubstr("--set: expected key.path=value, got '=3'"));
  expect_refused(sim_run({"--set", "batch_size=[1", good()}),
                 AllOf(HasSubstr("--set batch_size=[1"), HasSubstr("not YAML")));
  expect_refused(sim_run({"--set", "task.name=3", good()}), HasSubstr("--set task.name=3: 'task' is not a mapping"));
}

TEST_F(BadInputTest, SetOfAnUnknownKeyOrImpossibleValueIsRefused) {
  expect_refused(sim_run({"--set", "batch_sise=3", good()}), HasSubstr("batch_sise: unknown key"));
  expect_refused(sim_run({"--set", "model.hidden=none", good()}),
                 HasSubstr("model.hidden: expected 1 or more, got 'none'"));
  expect_refused(sim_run({"--max-steps", "0", good()}), HasSubstr("max_steps: expected 1 or more, got '0'"));
  expect_refused(sim_run({"--max-steps", "few", good()}), HasSubstr("--max-steps"));
}

// --- the trace, the environment, the build ---------------------------------------------------------------------------

TEST_F(BadInputTest, TraceIntoAFolderThatDoesNotExistIsRefused) {
  expect_refused(sim_run({"--trace", folder_.path("none/trace.jsonl"), good()}),
                 AllOf(HasSubstr("--trace"), HasSubstr("none is not a folder")));
  expect_refused(sim_run({"--trace", folder_.path(), good()}),
                 AllOf(HasSubstr("--trace"), HasSubstr("cannot be written")));
}

TEST_F(BadInputTest, RefusedRunLeavesNoFile) {
  const auto file = with("epochs: none");
  for (const auto* backend : {"sim", "gloo"})
    expect_refused(sim_run({"--backend", backend, "--trace", folder_.path("trace.jsonl"), file}), HasSubstr("epochs"));
  EXPECT_THAT(folder_.files(), ElementsAre("bad.yaml"));
}

TEST_F(BadInputTest, RefusedRunKeepsTheTraceOfTheRunBefore) {
  const auto trace = folder_.write("trace.jsonl", "before\n");
  expect_refused(sim_run({"--trace", trace, with("epochs: none")}), HasSubstr("epochs"));
  std::string line;
  std::getline(std::ifstream(trace) >> std::ws, line);
  EXPECT_EQ(line, "before");
}

TEST_F(BadInputTest, TraceIntoADeviceIsWrittenThereAndDoesNotReplaceIt) {
  const auto link = folder_.path("device");
  std::filesystem::create_symlink("/dev/null", link);
  const auto run = sim_run({"--trace", link, good()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_TRUE(std::filesystem::is_symlink(link));
  EXPECT_THAT(folder_.files(), ElementsAre("device", "good.yaml"));
}

TEST_F(BadInputTest, BusyMasterPortIsNamed) {
  const BusyPort busy;
  const auto port = std::to_string(busy.port());
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", port}}),
                 HasSubstr("MASTER_PORT: port " + port + " is in use"));
}

TEST_F(BadInputTest, EnvironmentVariableThatIsNoNumberIsRefused) {
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", "ssh"}}),
                 HasSubstr("MASTER_PORT: expected an integer, got 'ssh'"));
  expect_refused(sim_run({"--backend", "gloo", "--ranks", "2", good()}, {{"MASTER_PORT", "99999"}}),
                 HasSubstr("MASTER_PORT"));
  expect_refused(sim_run({good()}, {{"ACCEL_TIMEOUT_SECONDS", "soon"}}),
                 HasSubstr("ACCEL_TIMEOUT_SECONDS: expected an integer, got 'soon'"));
}

#ifndef ACCEL_CUDA
TEST_F(BadInputTest, NcclInABuildWithoutCudaSaysHowToGetIt) {
  expect_refused(sim_run({"--backend", "nccl", "--ranks", "2", good()}),
                 AllOf(HasSubstr("backend nccl: this build has no CUDA"), HasSubstr("./dev build gpu")));
}
#endif

}  // namespace
}  // namespace accel::testing::bad_input_test
