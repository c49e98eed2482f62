// Settings of a launch that nothing in accel reads: each has a reason, and is refused or reported.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/config/launch/launch_keys.hpp"
#include "tests/sim/programs/accel/planned_launch.hpp"
#include "tests/support/clean_environment.hpp"

namespace accel::programs {
namespace {

using namespace planned_launch;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A value that asks for something else than what happens anyway; "" if there is none.
std::string telling_value(const LaunchKey& key, bool allows_fallback) {
  switch (key.kind) {
    case KeyKind::kFlags: return "true,false,true";
    case KeyKind::kInteger: return "77";
    case KeyKind::kFlag:
      for (const bool value : {true, false}) {
        if (!is_harmless(key, ConfigValue(value), allows_fallback)) return value ? "true" : "false";
      }
      return "";
    default: break;
  }
  if (key.choices.size() == 0) return "telling";
  for (const std::string choice : key.choices) {
    if (!is_harmless(key, ConfigValue(choice), allows_fallback)) return choice;
  }
  return "";
}

// The flags and the file that select a section.
Words selecting(const LaunchSection& section) {
  const std::string name = section.name;
  if (name == "fsdp_config") return {"--use_fsdp", "--num_processes", "2"};
  if (name == "deepspeed_config") return {"--use_deepspeed", "--num_processes", "2"};
  if (name == "megatron_lm_config") return {"--use_megatron_lm", "--num_processes", "2"};
  if (name == "fp8_config") return {"--mixed_precision", "fp8", "--num_processes", "2"};
  if (name == "parallelism_config") return {"--use_parallelism_config", "--num_processes", "2"};
  return {"--num_processes", "2"};
}

// Otherwise a key would be accepted in silence.
TEST(UnusedValuesTest, EveryKeyOfASectionHasAnEffectOrAReason) {
  for (const auto& section : launch_sections()) {
    for (const auto& key : section.keys)
      EXPECT_NE(unused_reason(section, key) != nullptr, *key.help != '\0') << section.name << ": " << key.name;
  }
  for (const auto& [name, entry] : file_entries()) {
    if (entry.key == nullptr || entry.key->choices.size() == 1) continue;  // the only choice is what happens
    EXPECT_NE(entry.key->unused_reason != nullptr, *entry.key->help != '\0') << name;
  }
}

TEST(UnusedValuesTest, AFlagWithoutEffectIsRefusedWithItsReason) {
  int num_flags = 0;
  for (const auto& section : launch_sections()) {
    if (section.required_flag == nullptr) continue;
    for (const auto& key : section.keys) {
      const auto* reason = unused_reason(section, key);
      const auto value = telling_value(key, /*allows_fallback=*/false);
      if (reason == nullptr || value.empty()) continue;
      ++num_flags;
      auto flags = selecting(section);
      flags.push_back("--" + std::string(key.name) + "=" + value);
      EXPECT_THAT(problems_of_plan(flags), HasSubstr(fmt::format("--{}: has no effect: {}", key.name, reason)));
    }
  }
  EXPECT_GE(num_flags, 13);
}

// A file may come from Python, so only what would change the launch is an error. Values that reach the ranks are
// reported there.
TEST(UnusedValuesTest, AValueOfTheFileWithoutEffectIsReported) {
  for (const auto& section : launch_sections()) {
    for (const auto& key : section.keys) {
      const auto* reason = unused_reason(section, key);
      const auto value = telling_value(key, /*allows_fallback=*/true);
      if (reason == nullptr || value.empty()) continue;
      LaunchConfig config;
      (config.*section.field)[key.name] = value;
      if (section.field == &LaunchConfig::mpirun_config) config.mpirun_config["mpirun_hostfile"] = std::string("hosts");
      const auto around = surroundings(config);
      if (key.is_refused) {
        EXPECT_THAT(problems_of_plan(selecting(section), around),
                    HasSubstr(fmt::format("config file: {}: {}", key.name, reason)));
      } else if (key.variable == nullptr || key.kind == KeyKind::kFlags) {
        EXPECT_THAT(plan(selecting(section), around).warnings,
                    Contains(fmt::format("config file: {}: has no effect: {}", key.name, reason)));
      } else {
        accel::testing::CleanEnvironment environment{{key.variable}};
        environment.set({{key.variable, value}});
        EXPECT_THAT(unused_variables(), ElementsAre(fmt::format("{}: has no effect: {}", key.variable, reason)));
      }
    }
  }
  const auto warnings_of = [](const LaunchConfig& config) {
    return plan({"--num_processes", "2"}, surroundings(config)).warnings;
  };
  EXPECT_THAT(warnings_of({.tpu_name = "pod", .tpu_use_sudo = true, .commands = std::vector<std::string>{"ls"}}),
              AllOf(SizeIs(3), Contains(HasSubstr("commands: has no effect: it is for TPUs"))));
}

// What Accelerate's `config` and launcher write by default.
TEST(UnusedValuesTest, DefaultsOfPythonAreNotReported) {
  LaunchConfig config;
  config.downcast_bf16 = std::string("no");
  config.tpu_env = std::vector<std::string>();
  config.dynamo_config = {{"dynamo_backend", std::string("NO")}};
  config.mixed_precision = "fp8";
  config.parallelism_config = {{"parallelism_config_cp_size", std::int64_t{2}},
                               {"parallelism_config_sp_size", std::int64_t{2}}};
  for (const auto& section : launch_sections()) {
    if (section.field != &LaunchConfig::fp8_config) continue;
    for (const auto& key : section.keys) {
      if (key.fallback != nullptr && key.kind != KeyKind::kFlags)
        config.fp8_config[key.name] = std::string(key.fallback);
    }
  }
  const auto quiet = plan({"--num_processes", "2"}, surroundings(config));
  EXPECT_THAT(quiet.warnings, IsEmpty());
  accel::testing::CleanEnvironment environment{{"ACCELERATE_", "PARALLELISM_CONFIG_"}};
  for (const auto& [name, text] : quiet.job.environment) environment.set({{name, text}});
  for (const auto& [name, text] : quiet.job.default_environment) environment.set({{name, text}});
  EXPECT_THAT(unused_variables(), IsEmpty());
}

}  // namespace
}  // namespace accel::programs
