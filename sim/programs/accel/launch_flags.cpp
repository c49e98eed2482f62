#include "sim/programs/accel/launch_flags.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "reference/config/launch_keys.hpp"
#include "reference/config/nearest_name.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

enum class Takes { kNothing, kText, kInteger, kNumber, kPrecision };

struct Flag {
  const char* name;
  Takes takes;
  const char* help;
};

struct FlagGroup {
  const char* title;
  std::vector<Flag> flags;
};

// Of a flag that Accelerate has, why it is none here.
struct Refusal {
  const char* prefix;
  const char* reason;
};

const std::vector<FlagGroup>& flag_groups() {
  using enum Takes;
  static const std::vector<FlagGroup> groups{
      {"What runs where",
       {{"cpu", kNothing, "Ranks on CPUs, over Gloo, as many as --num_processes"},
        {"multi_gpu", kNothing, "One rank per GPU, over NCCL"},
        {"sim", kNothing, "Simulated ranks: threads of one process, as many as --num_processes"},
        {"num_processes", kInteger, "Ranks on all machines together; default: one per GPU, or 1"},
        {"gpu_ids", kText, "GPUs of this machine, as in 0,2, or all"},
        {"num_machines", kInteger, "Default 1"},
        {"machine_rank", kInteger, "This machine's number, from 0"},
        {"main_process_ip", kText, "Address of machine 0"},
        {"main_process_port", kInteger,
         "Port of machine 0; default 29500, on one machine another if that is in use; 0: any free one"},
        {"same_network", kNothing, "Accepted: machines always meet at machine 0's address"},
        {"rdzv_backend", kText, "static, the only one here"},
        {"rdzv_conf", kText,
         "join_timeout, keep_alive_interval (seconds) and keep_alive_max_attempt, as in "
         "join_timeout=60,keep_alive_interval=2"},
        {"mpirun_hostfile", kText, "Let mpirun start the ranks on these hosts"}}},
      {"What ranks are told",
       {{"config_file", kText, "File of `accel config`; default: the one in the cache folder, but not with --cpu"},
        {"mixed_precision", kPrecision, "no, fp16, bf16 or fp8"},
        {"gradient_accumulation_steps", kInteger, "Micro-batches in an optimizer step"},
        {"num_cpu_threads_per_process", kInteger,
         "OMP_NUM_THREADS; default: that variable, else 1, with --cpu an equal part of the cores"},
        {"enable_cpu_affinity", kNothing, "Each rank runs on CPUs of its own, next to each other in memory"},
        {"debug", kNothing, "Check shapes before collectives"},
        {"use_fsdp", kNothing, "Shard by FSDP, with the flags --fsdp_*"},
        {"use_deepspeed", kNothing, "Shard by DeepSpeed's stages, with its flags"},
        {"use_parallelism_config", kNothing, "A mesh of ranks, with the flags --parallelism_config_*"},
        {"no_python", kNothing, "Accepted: programs are always executed themselves"}}},
      {"What becomes of them",
       {{"max_restarts", kInteger, "So often all ranks begin anew after a failure; default 0"},
        {"monitor_interval", kNumber, "Seconds between two looks at the ranks; default 0.1. An end is noticed at once"},
        {"log_dir", kText, "Every rank's output into files of this folder, too"},
        {"tee", kText,
         "Which output goes to the files: 1 standard output, 2 standard error, 3 both; 0:1,1:3 by local rank"},
        {"role", kText, "What stands in front of a rank's lines in place of `rank`"},
        {"no_prefix", kNothing, "Nothing in front of a rank's lines"},
        {"dry_run", kNothing, "Print what would run, and run nothing"},
        {"quiet", kNothing, "Nothing on standard error but the ranks' own"},
        {"help", kNothing, "This text"}}}};
  return groups;
}

constexpr Refusal kRefusals[] = {
    {"module", "it runs a Python module; PROGRAM is an executable file here"},
    {"tpu", "there are no TPUs in LibTorch"},
    {"no_tpu", "there are no TPUs in LibTorch"},
    {"vm", "it is for TPU pods, which LibTorch has none of"},
    {"env", "it is for TPU pods, which LibTorch has none of; variables of this command's environment reach every rank"},
    {"main_training_function", "it is for TPUs, which LibTorch has none of"},
    {"downcast_bf16", "it is for TPUs, which LibTorch has none of"},
    {"aws_", "SageMaker starts Python scripts; start the program with mpirun or this command"},
    {"use_megatron_lm", "Megatron-LM is a Python program"},
    {"megatron_lm_", "Megatron-LM is a Python program"},
    {"dynamo_", "TorchDynamo compiles Python; there is none here"}};

constexpr const char* kSectionsWithFlags[] = {"fsdp_config", "deepspeed_config", "parallelism_config", "fp8_config"};

const Flag* find_flag(const std::string& name) {
  for (const auto& group : flag_groups()) {
    const auto found =
        std::find_if(group.flags.begin(), group.flags.end(), [&](const Flag& flag) { return flag.name == name; });
    if (found != group.flags.end()) return &*found;
  }
  return nullptr;
}

const SectionKey* find_section_key(const std::string& name) {
  for (const auto* section : kSectionsWithFlags) {
    const auto keys = section_table(section).keys;
    const auto found = std::find_if(keys.begin(), keys.end(), [&](const SectionKey& key) { return key.name == name; });
    if (found != keys.end()) return &*found;
  }
  return nullptr;
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::string problem_with_value(const Flag& flag, const std::string& value) {
  if (flag.takes == Takes::kInteger && !parse_number<int>(value))
    return fmt::format("expected an integer, got '{}'", value);
  if (flag.takes == Takes::kNumber && !(parse_number<double>(value).value_or(-1) > 0))
    return fmt::format("expected a number above 0, got '{}'", value);
  if (flag.takes == Takes::kPrecision && !is_mixed_precision(value))
    return fmt::format("expected {}, got '{}'", fmt::join(kMixedPrecisions, ", "), value);
  return "";
}

// A flag with dashes and hyphens, by its name; "" if it is none.
std::string name_of(const std::string& argument) {
  if (argument == "-h") return "help";
  if (argument == "-q") return "quiet";
  if (argument == "-t") return "tee";
  if (argument == "-m") return "module";
  if (!argument.starts_with("--")) return argument.starts_with("-") && argument.size() > 1 ? argument : "";
  auto name = argument.substr(2, argument.find('=') == std::string::npos ? std::string::npos : argument.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const auto& group : flag_groups()) {
    for (const auto& flag : group.flags) names.emplace_back(flag.name);
  }
  for (const auto* section : kSectionsWithFlags) {
    for (const auto& key : section_table(section).keys) {
      if (find_flag(key.name) == nullptr) names.emplace_back(key.name);
    }
  }
  return names;
}

class FlagParser {
 public:
  explicit FlagParser(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  LaunchFlags parse(bool needs_program) {
    for (; at_ < arguments_.size(); ++at_) {
      const auto& argument = arguments_[at_];
      if (argument == "--") {
        ++at_;
        break;
      }
      const auto name = name_of(argument);
      if (name.empty()) break;
      take(argument, name);
    }
    flags_.command.assign(arguments_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, arguments_.size())),
                          arguments_.end());
    const bool is_help = flags_.has("help");
    if (needs_program && flags_.command.empty() && !is_help)
      problems_.emplace_back("no PROGRAM; expected `accel launch [flags] PROGRAM [ARGS...]`");
    check_config(problems_.empty() || is_help, "{}", fmt::join(problems_, "\n"));
    return flags_;
  }

 private:
  void take(const std::string& argument, const std::string& name) {
    const auto* flag = find_flag(name);
    const auto* key = flag == nullptr ? find_section_key(name) : nullptr;
    if (flag != nullptr && flag->takes == Takes::kNothing) {
      if (argument.find('=') != std::string::npos)
        problems_.push_back(
            fmt::format("--{}: takes no value, got '{}'", name, argument.substr(argument.find('=') + 1)));
      flags_.given[name] = "true";
    } else if (flag != nullptr || key != nullptr) {
      const auto value = value_of(argument, name);
      if (!value) return;
      if (flag != nullptr) note("--" + name, problem_with_value(*flag, *value));
      if (key != nullptr && !fits(*key, *value))
        note("--" + name, fmt::format("expected {}, got '{}'", expected_of(*key), *value));
      flags_.given[name] = *value;
    } else {
      refuse(argument, name);
    }
  }

  std::optional<std::string> value_of(const std::string& argument, const std::string& name) {
    if (const auto equals = argument.find('='); equals != std::string::npos && argument.starts_with("--"))
      return argument.substr(equals + 1);
    if (at_ + 1 < arguments_.size()) return arguments_[++at_];
    problems_.push_back(fmt::format("--{}: expected a value", name));
    return std::nullopt;
  }

  void refuse(const std::string& argument, const std::string& name) {
    const auto refusal = std::find_if(std::begin(kRefusals), std::end(kRefusals), [&](const Refusal& entry) {
      const std::string prefix = entry.prefix;
      return prefix.ends_with("_") || prefix.ends_with("tpu") ? name.starts_with(prefix) : name == prefix;
    });
    const auto spelled = argument.substr(0, argument.find('='));
    if (refusal == std::end(kRefusals)) {
      problems_.push_back(fmt::format("{}: unknown flag{}", spelled, nearest_name_hint(name, known_names())));
      if (takes_value(nearest_name(name, known_names()).value_or(""))) skip_value(argument);
      return;
    }
    problems_.push_back(fmt::format("{}: {}", spelled, refusal->reason));
    const bool has_value = name.starts_with("aws_") || name.starts_with("megatron_lm_") ||
                           name.starts_with("dynamo_") || name == "vm" || name == "env" ||
                           name == "main_training_function";
    if (has_value) skip_value(argument);
  }

  // What stands behind a flag that is refused is its value, not the program.
  void skip_value(const std::string& argument) {
    if (argument.find('=') == std::string::npos && at_ + 1 < arguments_.size() && !arguments_[at_ + 1].starts_with("-"))
      ++at_;
  }

  static bool takes_value(const std::string& name) {
    const auto* const flag = find_flag(name);
    return flag != nullptr ? flag->takes != Takes::kNothing : find_section_key(name) != nullptr;
  }

  void note(const std::string& what, const std::string& problem) {
    if (!problem.empty()) problems_.push_back(what + ": " + problem);
  }

  const std::vector<std::string>& arguments_;
  std::size_t at_ = 0;
  LaunchFlags flags_;
  std::vector<std::string> problems_;
};

}  // namespace

std::optional<std::string> LaunchFlags::text(const std::string& name) const {
  const auto found = given.find(name);
  return found == given.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int> LaunchFlags::integer(const std::string& name) const {
  const auto value = text(name);
  return value ? parse_number<int>(*value) : std::nullopt;
}

std::optional<double> LaunchFlags::number(const std::string& name) const {
  const auto value = text(name);
  return value ? parse_number<double>(*value) : std::nullopt;
}

LaunchFlags parse_launch_flags(const std::vector<std::string>& arguments, bool needs_program) {
  return FlagParser(arguments).parse(needs_program);
}

std::string launch_flags_help() {
  std::string text;
  for (const auto& group : flag_groups()) {
    text += fmt::format("{}:\n", group.title);
    for (const auto& flag : group.flags) {
      const auto* const value = flag.takes == Takes::kNothing   ? ""
                                : flag.takes == Takes::kInteger ? " N"
                                : flag.takes == Takes::kNumber  ? " SECONDS"
                                                                : " TEXT";
      text += fmt::format("  {:<34} {}\n", fmt::format("--{}{}", flag.name, value), flag.help);
    }
    text += '\n';
  }
  for (const auto* section : kSectionsWithFlags) {
    text += fmt::format("Keys of {}:\n", section);
    for (const auto& key : section_table(section).keys) {
      if (find_flag(key.name) == nullptr)
        text += fmt::format("  {:<46} {}\n", std::string("--") + key.name, expected_of(key));
    }
    text += '\n';
  }
  return text;
}

std::vector<std::string> launch_flag_names() {
  auto names = known_names();
  for (auto& name : names) name = "--" + name;
  return names;
}

}  // namespace accel::programs
