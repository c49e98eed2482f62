// DeepSpeed's JSON files: which keys have a meaning here, and which are named as ignored. A key that is dropped
// silently would make a user believe that it works.
#include "reference/config/plugins/deepspeed_file.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

class DeepSpeedFileTest : public ::testing::Test {
 protected:
  std::string file(const std::string& content) { return folder_.write("ds.json", content); }
  std::string problems_of(const std::string& content) {
    return message_of<ConfigError>([&] { read_deepspeed_file(file(content)); });
  }

 private:
  TemporaryFolder folder_;
};

// The file is written for DeepSpeed, so many keys have no meaning here; users are told which ones.
TEST_F(DeepSpeedFileTest, IgnoredKeysAreNamedInOrder) {
  const auto path = file(R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 8, "steps_per_print": 10, )"
                         R"("zero_optimization": {"stage": 2, "overlap_comm": true,
      "offload_optimizer": {"device": "cpu", "pin_memory": true}}, "activation_checkpointing": {"profile": false},
      "fp16": {"enabled": false, "loss_scale": 0}, "optimizer": {"type": "Adam"}})");
  EXPECT_THAT(ignored_keys(path), ElementsAre("steps_per_print", "zero_optimization.overlap_comm",
                                              "zero_optimization.offload_optimizer.pin_memory",
                                              "activation_checkpointing", "fp16.loss_scale"));
  EXPECT_THAT(ignored_keys(file(R"({"zero_optimization": {"stage": 1}})")), IsEmpty());
}

// "auto" is allowed almost everywhere, so numbers cannot be parsed at this point.
TEST_F(DeepSpeedFileTest, ValuesAreKeptAsTextAndNullIsAbsent) {
  EXPECT_THAT(read_deepspeed_file(
                  file(R"({"gradient_clipping": 0.5, "gradient_accumulation_steps": null, "bf16": {"enabled": true},
      "zero_optimization": {"stage": "auto", "offload_param": null}})"))
                  .values,
              ElementsAre(Pair("bf16.enabled", "true"), Pair("gradient_clipping", "0.5"),
                          Pair("zero_optimization.stage", "auto")));
}

TEST_F(DeepSpeedFileTest, AllProblemsAreReported) {
  EXPECT_THAT(
      problems_of(
          R"({"zero_optimization": 2, "fp16": {"enabled": [true]}, "steps_per_print": 1, "steps_per_print": 2, )"
          R"("optimizer": "Adam", "scheduler": {"type": "OneCycle"}})"),
      AllOf(HasSubstr("ds.json: "), HasSubstr("zero_optimization: expected an object, got 2"),
            HasSubstr("fp16.enabled: expected a single value"),
            HasSubstr("steps_per_print: duplicate key; keep only one"), HasSubstr("optimizer: expected {\"type\""),
            HasSubstr("scheduler.type: expected WarmupLR, WarmupDecayLR or WarmupCosineLR, got 'OneCycle'")));
}

TEST_F(DeepSpeedFileTest, WhatIsNoJsonObjectSaysSo) {
  EXPECT_THAT(problems_of("{\"a\": 1, // comment\n}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(problems_of("[1]"), HasSubstr("expected a JSON object, got JSON of type array"));
  EXPECT_THAT(problems_of(""), HasSubstr("not valid JSON"));
  EXPECT_THROW(read_deepspeed_file("/nowhere/ds.json"), ConfigError);
}

// Duplicate keys are errors within one object only.
TEST_F(DeepSpeedFileTest, ObjectsOfAListMayHaveEqualKeys) {
  EXPECT_EQ(problems_of(R"({"compression_training": [{"a": 1}, {"a": 2}]})"), "");
}

// Numbers, texts and "auto" are kept apart, since each has another meaning.
TEST_F(DeepSpeedFileTest, AnOptimizerHasItsParameters) {
  const auto section =
      optimizer_section(file(R"({"optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95], )"
                             R"("eps": 1e-8, "torch_adam": true, "mode": "x"}}})"));
  EXPECT_EQ(section->type, "AdamW");
  EXPECT_THAT(section->numbers, ElementsAre(Pair("eps", 1e-8), Pair("torch_adam", 1)));
  EXPECT_THAT(section->lists, ElementsAre(Pair("betas", ElementsAre(0.9, 0.95))));
  EXPECT_THAT(section->texts, ElementsAre(Pair("mode", "x")));
  EXPECT_THAT(section->automatic, ElementsAre("lr"));
  EXPECT_EQ(optimizer_section(file("{}")), std::nullopt);
  EXPECT_THAT(problems_of(R"({"optimizer": {"type": "Adam", "params": {"betas": ["a"]}}})"),
              HasSubstr("optimizer.params.betas: expected a number"));
  EXPECT_THAT(problems_of(R"({"optimizer": {"type": "Adam", "params": 3}})"),
              HasSubstr("optimizer.params: expected an object"));
}

// The section lists what was given; defaults are added later.
TEST_F(DeepSpeedFileTest, AScheduleHasOnlyItsOwnParameters) {
  const auto section = scheduler_section(
      file(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": "auto",
      "warmup_type": "linear", "total_num_steps": "auto"}}})"));
  EXPECT_EQ(section->type, "WarmupDecayLR");
  EXPECT_THAT(section->numbers, ElementsAre(Pair("warmup_min_lr", 0)));
  EXPECT_THAT(section->texts, ElementsAre(Pair("warmup_type", "linear")));
  EXPECT_THAT(section->automatic, ElementsAre("total_num_steps", "warmup_max_lr"));
  EXPECT_EQ(scheduler_section(file(R"({"scheduler": {"type": "WarmupLR"}})"))->type, "WarmupLR");
  EXPECT_THAT(problems_of(R"({"scheduler": {"type": "WarmupLR", "params": {"total_num_steps": 3, )"
                          R"("warmup_num_steps": "many", "warmup_type": 1}}})"),
              AllOf(HasSubstr("scheduler.params.total_num_steps: WarmupLR has no such parameter"),
                    HasSubstr("scheduler.params.warmup_num_steps: expected a number or \"auto\", got 'many'"),
                    HasSubstr("scheduler.params.warmup_type: expected log, linear or \"auto\", got 1")));
  EXPECT_EQ(problems_of(R"({"scheduler": {"type": "WarmupCosineLR", "params": {"warmup_min_ratio": 0.1, )"
                        R"("cos_min_ratio": 0.01, "total_num_steps": 9}}})"),
            "");
}

// DeepSpeed ignores unknown keys at the top, so a misspelt one would leave its default in place, silently.
TEST_F(DeepSpeedFileTest, KeysThatDeepSpeedLacksAreErrors) {
  EXPECT_THAT(problems_of(R"({"gradient_clippng": 1, "my_key": 2, "optimiser": {"type": "Adam"}, "zero_optimization": {
      "stge": 2, "overlap_com": true, "offload_param": {"devise": "cpu"}}, "fp16": {"enabld": true},
      "checkpoint": {"load_univers": true}})"),
              AllOf(HasSubstr("gradient_clippng: unknown key; did you mean 'gradient_clipping'?"),
                    HasSubstr("my_key: unknown key; correct or remove it"),
                    HasSubstr("optimiser: unknown key; did you mean 'optimizer'?"),
                    HasSubstr("zero_optimization.stge: unknown key; did you mean 'stage'?"),
                    HasSubstr("zero_optimization.overlap_com: unknown key; did you mean 'overlap_comm'?"),
                    HasSubstr("zero_optimization.offload_param.devise: unknown key; did you mean 'device'?"),
                    HasSubstr("fp16.enabld: unknown key; did you mean 'enabled'?"),
                    HasSubstr("checkpoint.load_univers: unknown key; did you mean 'load_universal'?")));
  EXPECT_EQ(problems_of(R"({"tensorboard": {"anything": 1}, "checkpoint": {"tag_validation": "Warn"}})"), "");
}

}  // namespace
}  // namespace accel::testing
