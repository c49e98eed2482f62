// Errors in an experiment file: unknown keys, wrong types, impossible values. Each is reported with file, line,
// key, expected and given value, and all of them in one message: see bad_input.hpp.
#include <fstream>
#include <regex>
#include <set>

#include "tests/programs/support/bad_input.hpp"

namespace accel::testing::bad_input_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class BadInputTest : public ExperimentFiles {};

// Guards all other tests: with a broken base file every case would fail for the wrong reason.
TEST_F(BadInputTest, GoodFileRuns) { EXPECT_EQ(sim_run({good()}).exit_code, 0); }

// A mistyped key would otherwise be ignored, and the training would run with a default.
TEST_F(BadInputTest, UnknownKeyIsNamedWithItsLineAndTheKnownOnes) {
  expect_refused(sim_run({with("batch_sise: 8")}),
                 HasSubstr("bad.yaml:10: batch_sise: unknown key; known: accelerator, batch_size"));
  expect_refused(sim_run({with("model: {name: mlp, hiden: 8}")}), HasSubstr("bad.yaml:9: model.hiden: unknown key"));
  expect_refused(sim_run({with("model: {name: cnn, hidden: 8}")}), HasSubstr("model.hidden: unknown key"));
}

// YAML converts types freely: "1.5" must not become 1, nor 3 become true.
TEST_F(BadInputTest, WrongTypeSaysWhatWasExpectedAndGiven) {
  expect_refused(sim_run({with("epochs: many")}), HasSubstr("bad.yaml:9: epochs: expected 1 or more, got 'many'"));
  expect_refused(sim_run({with("shuffle: 3")}), HasSubstr("bad.yaml:10: shuffle: expected true or false, got '3'"));
  expect_refused(sim_run({with("limit: [1, 2]")}), HasSubstr("limit: expected 1 or more, got [1, 2]"));
  expect_refused(sim_run({with("model: mlp")}), HasSubstr("model: expected a mapping"));
  expect_refused(sim_run({with("batch_size: 1.5")}), HasSubstr("batch_size: expected 1 or more, got '1.5'"));
}

TEST_F(BadInputTest, ImpossibleValueIsRefused) {
  expect_refused(sim_run({with("batch_size: 0")}), HasSubstr("batch_size: expected 1 or more, got '0'"));
  expect_refused(sim_run({with("model: {name: mlp, dropout: 1.0}")}),
                 HasSubstr("model.dropout: expected a number in [0, 1)"));
  expect_refused(sim_run({with("optimizer: {name: sgd, lr: .nan}")}),
                 // A NaN passes comparisons such as `lr < 0`, so it needs its own check.
                 HasSubstr("optimizer.lr: expected a number of 0 or more"));
  expect_refused(sim_run({with("model: {name: transformer}")}),
                 HasSubstr("model.name: expected mlp or cnn, got 'transformer'"));
  expect_refused(sim_run({with("task: cifar")}),
                 HasSubstr("task: expected fashion_mnist or cifar_like or char_gpt, got 'cifar'"));
  expect_refused(sim_run({with("seed: -1")}), HasSubstr("seed: expected 0 or more"));
}

// The argument names and defaults come from torch.optim; a key of another optimizer must not be ignored silently.
TEST_F(BadInputTest, AnOptimizersArgumentsAreThoseOfPythonsClass) {
  expect_refused(sim_run({with("optimizer: {name: rprop, lr: 0.1, etas: [0.5], momentum: 1}")}),
                 AllOf(HasSubstr("optimizer.etas: expected a list of two finite numbers, got [0.5]"),
                       HasSubstr("optimizer.momentum: unknown key; known: ")));
  expect_refused(sim_run({with("optimizer: {name: nadam, lr: 0.1, betas: [0.9, 1], eps: -1}")}),
                 AllOf(HasSubstr("optimizer.betas: expected two numbers in [0, 1)"),
                       HasSubstr("optimizer.eps: expected a number of 0 or more")));
  expect_refused(sim_run({with("optimizer: {name: adafactor, lr: 0.1, eps: [0.1, null], foreach: 3}")}),
                 AllOf(HasSubstr("optimizer.eps: expected a list of null or a finite number and a finite number"),
                       HasSubstr("optimizer.foreach: expected true or false")));
  expect_refused(sim_run({with("optimizer: {name: muon, lr: 0.1, ns_steps: 100, adjust_lr_fn: other}")}),
                 AllOf(HasSubstr("optimizer.ns_steps: expected fewer than 100 iterations, got 100"),
                       HasSubstr("optimizer.adjust_lr_fn: expected original or match_rms_adamw, got 'other'")));
  expect_refused(sim_run({with("optimizer: {name: sgd, lr: 0.1, maximize: true}")}),
                 HasSubstr("optimizer.maximize: unknown key"));
  expect_refused(sim_run({with("optimizer: {name: lamb}")}),
                 AllOf(HasSubstr("optimizer.name: expected one of adadelta, "), HasSubstr("optimizer.lr: missing")));
}

// These options are checked by the Accelerator itself; its messages must reach the user with the file's name.
TEST_F(BadInputTest, AllThatIsWrongWithTheAcceleratorsOptionsIsInOneMessage) {
  expect_refused(
      sim_run({with("accelerator: {gradient_accumulation_steps: 2, gradient_accumulation_plugin: {num_steps: 0}, "
                    "loss_weighting: fair, grad_scaler_kwargs: {growth_factor: 1}, "
                    "gradient_guard: {skip_norm_above: 0}, ddp_kwargs: {comm_hook: zip, bucket_cap_mb: 0}, "
                    "autocast_kwargs: {dtype: half}}")}),
      AllOf(HasSubstr("num_steps: expected 1 or more"),
            HasSubstr("cannot be combined with gradient_accumulation_plugin"),
            HasSubstr("loss_weighting: expected accelerate or exact"),
            HasSubstr("growth_factor: expected a number above 1"),
            HasSubstr("skip_norm_above: expected a number above 0"), HasSubstr("comm_hook: expected"),
            HasSubstr("bucket_cap_mb: expected 1 or more"), HasSubstr("autocast_kwargs.dtype: unknown key")));
}

TEST_F(BadInputTest, SplitBatchesThatDoNotDivideByTheRanksAreRefused) {
  // The check needs the number of ranks, which is known only after the command line is read.
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
  expect_refused(sim_run({sharded}), HasSubstr("bad.yaml:7: clip_grad_value: unsupported with fsdp_plugin"));
}

// Returns every name that a message lists as known.
std::set<std::string> known_names(const std::string& message) {
  // Names appear after "known: " or in "expected a, b or c". Texts of other messages must not match.
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

// The error messages list what the parser accepts, so this finds every key that is added without documentation.
TEST_F(BadInputTest, TheGuideToExperimentFilesDocumentsEveryName) {
  const std::string rest =
      "optimizer: {name: none}\nscheduler: {name: none}\nunknown: 1\naccelerator: {unknown: 1}\ndataloader_config: "
      "{unknown: 1}\nmodel: {name: none}\n";
  auto names = known_names(sim_run({bad("task: none\n" + rest)}).error);
  // More than 80 names are known today. A lower count means that the regular expression no longer fits the
  // messages.
  EXPECT_GT(names.size(), 80U);
  for (const auto* task : {"fashion_mnist", "cifar_like", "char_gpt"})
    names.merge(known_names(sim_run({bad("task: " + std::string(task) + "\n" + rest)}).error));
  std::ifstream in(source("configs/train/README.md"));
  const std::string guide{std::istreambuf_iterator<char>(in), {}};
  for (const auto& name : names)
    EXPECT_THAT(guide, ::testing::AnyOf(HasSubstr("`" + name + "`"), HasSubstr("**`" + name + "`**")));
}

// The list tells a new user what an experiment needs.
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
                 AllOf(HasSubstr("bad.yaml:3:"), HasSubstr("not valid YAML")));
  expect_refused(sim_run({bad("- task\n- model\n")}), HasSubstr("expected a mapping"));
  expect_refused(sim_run({bad(std::string("\x01\x02\xff\x00\x7f binary", 12))}), HasSubstr("bad.yaml"));
}

TEST_F(BadInputTest, KeyThatIsNoTextIsRefusedWithItsLine) {
  // YAML allows keys that are lists. They must not reach code that converts keys to strings.
  expect_refused(sim_run({bad(std::string(kGoodExperiment) + "? [a, b]\n: 3\n")}), HasSubstr("bad.yaml:10:"));
  expect_refused(sim_run({with("model: {name: mlp, {a: b}: 3}")}), HasSubstr("bad.yaml:9: model: a key is not a name"));
}

// YAML readers keep one of the two values, and not always the same one.
TEST_F(BadInputTest, KeyGivenTwiceIsRefused) {
  expect_refused(sim_run({bad(std::string(kGoodExperiment) + "batch_size: 16\n")}),
                 HasSubstr("bad.yaml:10: batch_size: duplicate key"));
}

// Two models that differ only in the block size, because a block of 300 needs a longer text.
constexpr const char* kGpt = "model: {name: gpt, layers: 1, heads: 2, width: 8, block_size: 16}";
constexpr const char* kGptOf300 = "model: {name: gpt, layers: 1, heads: 2, width: 8, block_size: 300}";

// Images and texts need different networks.
TEST_F(BadInputTest, ModelOfAnotherTaskIsRefused) {
  expect_refused(sim_run({with(kGpt)}), HasSubstr("bad.yaml:9: model.name: expected mlp or cnn, got 'gpt'"));
  expect_refused(sim_run({"--set", "task=char_gpt", good()}), HasSubstr("model.name: expected gpt, got 'mlp'"));
  expect_refused(sim_run({"--set", "task=cifar_like", good()}),
                 HasSubstr("model.name: expected resnet18 or torchvision_resnet18 or torchvision_resnet50, got 'mlp'"));
}

TEST_F(BadInputTest, AllThatIsWrongWithALanguageModelIsInOneMessage) {
  const auto file = with("model: {name: gpt, layers: 0, heads: 3, width: 8, bias: 2, hidden: 3}");
  expect_refused(sim_run({"--set", "task=char_gpt", "--set",
                          "sample={length: 0, prompt: '', temperature: 0, top_k: 0, seed: -1, words: 3}", "--set",
                          "data_dir=x", file}),
                 AllOf(HasSubstr("model.layers: expected 1 or more, got '0'"),
                       HasSubstr("model.heads: width 8 is not divisible by 3 heads"),
                       HasSubstr("model.block_size: missing"), HasSubstr("model.bias: expected true or false, got '2'"),
                       HasSubstr("model.hidden: unknown key"), HasSubstr("sample.length: expected 1 or more, got '0'"),
                       HasSubstr("sample.prompt: expected a non-empty text"),
                       HasSubstr("sample.temperature: expected a number above 0"),
                       HasSubstr("sample.top_k: expected 1 or more"), HasSubstr("sample.seed: expected 0 or more"),
                       HasSubstr("sample.words: unknown key"), HasSubstr("data_dir: unknown key")));
}

TEST_F(BadInputTest, ShapesOfALanguageModelThatDoNotFitTogetherAreInOneMessage) {
  const auto file = with(
      "model: {name: gpt, layers: 1, heads: 3, width: 9, block_size: 16, positions: rotary, key_value_heads: 2, norm: "
      "none, feed_forward_width: 0, rope_parameters: {rope_theta: 0, rope_type: yarn, beta: 1}}");
  expect_refused(
      sim_run({"--set", "task=char_gpt", file}),
      AllOf(HasSubstr("bad.yaml:9: model.heads: rotary positions rotate pairs, so a head needs an even width, got 3"),
            HasSubstr("model.key_value_heads: 3 heads are not divisible by 2 key_value_heads"),
            HasSubstr("model.norm: expected layer_norm or rms_norm, got 'none'"),
            HasSubstr("model.feed_forward_width: expected 1 or more, got '0'"),
            HasSubstr("model.rope_parameters.rope_theta: expected a number above 0, got '0'"),
            HasSubstr("model.rope_parameters.rope_type: expected default, linear or llama3, got 'yarn'"),
            HasSubstr("model.rope_parameters.beta: unknown key")));
  expect_refused(sim_run({"--set", "task=char_gpt", "--set", "model.rope_parameters={rope_theta: 100}", with(kGpt)}),
                 HasSubstr("model.rope_parameters: has an effect with `positions: rotary` only"));
}

// Which keys are known depends on the task.
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
                 // Ten blocks of 300 are split into training and evaluation, hence 3001 bytes: each block predicts
                 // its next byte.
                 HasSubstr("text.txt: 3000 bytes; expected at least 3001"));
  folder_.write("text.txt", std::string(3001, 'x'));
  EXPECT_EQ(
      sim_run({"--ranks", "1", "--set", "task=char_gpt", "--set", "data_file=" + text, with(kGptOf300)}).exit_code, 0);
}

// An empty class would train nothing and only show as a low accuracy.
TEST_F(BadInputTest, ImageFoldersWithoutImagesAreRefused) {
  std::filesystem::create_directories(folder_.path("train/cat"));
  expect_refused(sim_run({"--set", "task=cifar_like", "--set", "model={name: resnet18}", "--set",
                          "data_dir=" + folder_.path(), good()}),
                 HasSubstr("cat"));
}

}  // namespace
}  // namespace accel::testing::bad_input_test
