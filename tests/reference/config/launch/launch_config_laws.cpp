// Writing and reading launch configurations are inverse, for anything that a configuration can hold, in YAML and in
// JSON. Damaged files are read or rejected by name.
#include <gmock/gmock.h>

#include <cmath>

#include "reference/config/launch/launch_config.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/property.hpp"
#include "tests/support/temporary_folder.hpp"

namespace accel::testing {
namespace {

class LaunchConfigLaws : public ::testing::Test {
 protected:
  TemporaryFolder folder_;
};

// Texts that YAML reads as other types if they are not quoted: booleans, numbers, null.
std::string any_text() {
  static const std::vector<std::string> kTexts = {"no",
                                                  "Null",
                                                  "~",
                                                  "",
                                                  "1e8",
                                                  "1:30",
                                                  "0x1f",
                                                  "012",
                                                  "2020-01-01",
                                                  "=",
                                                  "- a",
                                                  "-a",
                                                  "?",
                                                  ": ",
                                                  "a: b",
                                                  "a #b",
                                                  "a#b",
                                                  "#",
                                                  "%x",
                                                  "@",
                                                  "'",
                                                  "\"",
                                                  "it's",
                                                  " a",
                                                  "a ",
                                                  "a\nb",
                                                  "a\tb",
                                                  "\xc3\xa9\xf0\x9f\x98\x80",
                                                  "\\ud83d",
                                                  "[a]",
                                                  "{a",
                                                  "*a",
                                                  "&a",
                                                  "!a",
                                                  "|",
                                                  ">",
                                                  "---",
                                                  "...",
                                                  ".inf",
                                                  "+1",
                                                  "1_000",
                                                  "<<",
                                                  "on",
                                                  ".5",
                                                  "5.",
                                                  "10.0.0.1",
                                                  "~/hostfile",
                                                  "/a b/c",
                                                  "a:",
                                                  ":a",
                                                  "None",
                                                  "auto",
                                                  std::string(70, '7')};
  if (pick(0, 3) > 0) return kTexts[static_cast<std::size_t>(pick(0, static_cast<int>(kTexts.size())))];
  std::string text;
  for (int count = pick(0, 12); count > 0; --count) text += static_cast<char>(pick(0x20, 0x7F));
  return text;
}

// Doubles whose shortest decimal form needs all digits.
double any_double() { return std::ldexp(static_cast<double>(pick(-100000, 100000)), pick(-40, 40)); }

// A random value of the key's kind, one of its choices if it has any.
ConfigValue any_value(const LaunchKey& key) {
  if (key.kind == KeyKind::kFlags) return std::vector<bool>{pick(0, 2) == 1, pick(0, 2) == 1, pick(0, 2) == 1};
  if (key.kind == KeyKind::kInteger && key.choices.size() > 0)
    return std::int64_t{std::stoi(*(key.choices.begin() + pick(0, static_cast<int>(key.choices.size()))))};
  if (key.choices.size() > 0)
    return std::string(*(key.choices.begin() + pick(0, static_cast<int>(key.choices.size()))));
  if (key.kind == KeyKind::kFlag || (key.kind == KeyKind::kFlagOrText && pick(0, 2) == 1)) return pick(0, 2) == 1;
  if (key.kind == KeyKind::kInteger) return std::int64_t{pick(-1000000, 1000000)} * pick(1, 1000000);
  if (key.kind == KeyKind::kNumberOrAuto && pick(0, 2) == 1) return std::string("auto");
  if (key.kind == KeyKind::kNumber || key.kind == KeyKind::kNumberOrAuto) return any_double();
  return any_text();
}

// About a third of the section's keys, with random values.
ConfigSection any_section(const char* name) {
  ConfigSection section;
  for (const auto& key : launch_section(name).keys) {
    if (pick(0, 3) == 0) section[key.name] = any_value(key);
  }
  return section;
}

template <typename T>
std::optional<T> perhaps(const std::function<T()>& value) {
  return pick(0, 2) == 1 ? std::optional<T>(value()) : std::nullopt;
}

std::vector<std::string> any_texts() {
  std::vector<std::string> texts;
  for (int count = pick(0, 3); count > 0; --count) texts.push_back(any_text());
  return texts;
}

// A random configuration with any of its sections.
LaunchConfig any_config() {
  const auto flag = [] { return pick(0, 2) == 1; };
  constexpr std::array kTypes{"NO", "MULTI_CPU", "MULTI_GPU", "FSDP", "DEEPSPEED", "XLA", "MEGATRON_LM"};
  constexpr std::array kPrecisions{"no", "fp16", "bf16", "fp8"};
  LaunchConfig config;
  config.distributed_type = kTypes.at(static_cast<std::size_t>(pick(0, 7)));
  config.mixed_precision = perhaps<std::string>([&] { return kPrecisions.at(static_cast<std::size_t>(pick(0, 4))); });
  for (bool* member : {&config.use_cpu, &config.debug, &config.same_network, &config.enable_cpu_affinity,
                       &config.tpu_use_cluster, &config.tpu_use_sudo})
    *member = flag();
  config.num_processes = pick(-1, 100);
  config.machine_rank = pick(0, 4);
  config.num_machines = pick(1, 9);
  config.main_process_port = perhaps<int>([] { return pick(0, 65536); });
  for (auto* member :
       {&config.gpu_ids, &config.main_process_ip, &config.tpu_name, &config.tpu_zone, &config.command_file})
    *member = perhaps<std::string>(any_text);
  for (auto* member : {&config.commands, &config.tpu_vm, &config.tpu_env})
    *member = perhaps<std::vector<std::string>>(any_texts);
  config.rdzv_backend = any_text();
  config.main_training_function = any_text();
  if (flag())
    config.downcast_bf16 = any_text();
  else
    config.downcast_bf16 = flag();
  config.fp8_config = any_section("fp8_config");
  config.deepspeed_config = any_section("deepspeed_config");
  config.fsdp_config = any_section("fsdp_config");
  config.parallelism_config = any_section("parallelism_config");
  config.megatron_lm_config = any_section("megatron_lm_config");
  config.mpirun_config = any_section("mpirun_config");
  config.dynamo_config = any_section("dynamo_config");
  return config;
}

// Users edit the files that `accel config` writes and expect everything to be kept.
TEST_F(LaunchConfigLaws, AWrittenConfigurationIsReadAsAnEqualValue) {
  for (const std::string name : {"c.yaml", "c.json"}) {
    expect_property(300, [&] {
      const auto config = any_config();
      write_launch_config(config, folder_.path(name));
      RC_LOG() << read_text(folder_.path(name));
      RC_ASSERT(read_launch_config(folder_.path(name)) == config);
    });
  }
}

// Damages a text by inserting pieces that are special in YAML or JSON, or by changing bytes.
std::string damaged(std::string text) {
  static const std::vector<std::string> kPieces = {
      ":",    "\n",    " ",           "  ",   "- ",   "[",    "]",
      "{",    "}",     "'",           "\"",   "&a ",  "*a",   "!!binary ",
      "|\n",  "? ",    "#",           "\t",   "<<: ", "null", std::string(1, '\0'),
      "\xff", "---\n", "fsdp_config", "1e999"};
  for (int changes = pick(1, 3); changes > 0; --changes) {
    const auto place = pick<std::size_t>(0, text.size() + 1);
    if (pick(0, 2) == 0)
      text.erase(place, pick<std::size_t>(1, 9));
    else
      text.insert(place, kPieces[pick<std::size_t>(0, kPieces.size())]);
  }
  return text;
}

// Both outcomes must occur, or the test would prove little.
TEST_F(LaunchConfigLaws, ADamagedFileIsReadOrRejectedByItsName) {
  int refused = 0, read = 0;
  for (const std::string name : {"c.yaml", "c.json"}) {
    expect_property(400, [&] {
      const auto config = any_config();
      const auto file =
          folder_.write(name, damaged(name == "c.json" ? launch_config_json(config) : launch_config_yaml(config)));
      RC_LOG() << read_text(file);
      try {
        const auto found = read_launch_config(file);
        write_launch_config(found, file);
        RC_ASSERT(read_launch_config(file) == found);
        ++read;
      } catch (const ConfigError& error) {
        RC_ASSERT(std::string(error.what()).find(file) != std::string::npos);
        ++refused;
      }
    });
  }
  EXPECT_GT(refused, 50);
  EXPECT_GT(read, 20);
}

}  // namespace
}  // namespace accel::testing
