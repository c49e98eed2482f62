// The parser of `accel launch` flags. It is written by hand, unlike those of other commands, because it must accept
// Accelerate's command lines: parsing stops at PROGRAM, flags are spelled with hyphens or underscores, and flags that
// only make sense in Python are rejected with the reason.
#include "sim/programs/accel/launch_flags.hpp"

#include <algorithm>
#include <charconv>

#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/nearest_name.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"

namespace accel::programs {
namespace {

// Flags of Accelerate that this library rejects, and why. A name that ends in * is a prefix. takes_value lets the
// parser skip the value, which would otherwise be mistaken for PROGRAM.
struct Refusal {
  const char* name;
  bool takes_value;
  const char* reason;
};

constexpr Refusal kRefusals[] = {
    {"module", false, "runs a Python module; pass an executable file as PROGRAM instead"},
    {"tpu*", false, "unsupported; LibTorch has no TPU backend; leave the flag out"},
    {"no_tpu*", false, "unsupported; LibTorch has no TPU backend; leave the flag out"},
    {"vm", true, "unsupported; it is for TPU pods, and LibTorch has no TPU backend; leave the flag out"},
    {"env", true,
     "unsupported; it is for TPU pods, and LibTorch has no TPU backend; export the variable instead, since every rank "
     "inherits the environment"},
    {"main_training_function", true,
     "unsupported; it is for TPUs, and LibTorch has no TPU backend; leave the flag out"},
    {"downcast_bf16", false, "unsupported; it is for TPUs, and LibTorch has no TPU backend; leave the flag out"},
    {"aws_*", true, "unsupported; SageMaker starts Python scripts; start the program with mpirun or this command"},
    {"dynamo_*", true, "unsupported; TorchDynamo compiles Python code; leave the flag out"}};

const Refusal* find_refusal(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kRefusals), std::end(kRefusals), [&](const Refusal& refusal) {
    const std::string refused = refusal.name;
    return refused.ends_with('*') ? name.starts_with(refused.substr(0, refused.size() - 1)) : name == refused;
  });
  return found == std::end(kRefusals) ? nullptr : found;
}

template <typename T>
std::optional<T> parse_number(const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Returns the name of a short flag such as "-q", "" if there is none.
std::string name_of_letter(char letter) {
  if (letter == 'm') return "module";
  for (const auto& group : launch_groups()) {
    for (const auto& key : group.keys) {
      if (key.short_name == letter) return key.name;
    }
  }
  return "";
}

// Returns the name of a flag with underscores; "" if the argument is not a flag. Unknown short flags return themselves,
// so that they are reported instead of being run as PROGRAM.
std::string name_of(const std::string& argument) {
  if (argument.size() == 2 && argument[0] == '-') {
    const auto name = name_of_letter(argument[1]);
    return name.empty() ? argument : name;
  }
  if (!argument.starts_with("--")) return argument.starts_with("-") && argument.size() > 1 ? argument : "";
  auto name = argument.substr(2, argument.find('=') == std::string::npos ? std::string::npos : argument.find('=') - 2);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

// Returns the keys of a section whose names are not also flags of a group. gradient_accumulation_steps, for example, is
// a general flag and a DeepSpeed key; the help lists it once.
std::vector<const LaunchKey*> flags_of(const LaunchSection& section) {
  std::vector<const LaunchKey*> flags;
  for (const auto& key : section.keys) {
    if (section.required_flag != nullptr && find_launch_flag(key.name) == &key) flags.push_back(&key);
  }
  return flags;
}

// Used for suggestions and completion, in the order of the help.
std::vector<std::string> known_names() {
  std::vector<std::string> names;
  for (const auto& group : launch_groups()) {
    for (const auto& key : group.keys) names.emplace_back(key.name);
  }
  for (const auto& section : launch_sections()) {
    for (const auto* key : flags_of(section)) names.emplace_back(key->name);
  }
  return names;
}

const char* value_name(const LaunchKey& key) {
  switch (key.kind) {
    case KeyKind::kFlag: return "";
    case KeyKind::kInt: return " N";
    case KeyKind::kSeconds: return " SECONDS";
    default: return " TEXT";
  }
}

class FlagParser {
 public:
  explicit FlagParser(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  // Stops at the first argument that is not a flag, because everything from there on belongs to PROGRAM.
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
    // --help wins over wrong flags: the rest of the line does not matter to a user who asks for help.
    const bool is_help = flags_.has("help");
    if (needs_program && flags_.command.empty() && !is_help)
      problems_.emplace_back("PROGRAM is missing; expected `accel launch [flags] PROGRAM [ARGS...]`");
    check_config(problems_.empty() || is_help, "{}", listed(problems_, "\n"));
    return flags_;
  }

 private:
  void take(const std::string& argument, const std::string& name) {
    const auto* key = find_launch_flag(name);
    if (key == nullptr) return refuse(argument, name);
    if (is_switch(*key)) return take_switch(argument, name);
    const auto value = value_of(argument, name);
    if (!value) return;
    if (!fits(*key, *value))
      problems_.push_back(fmt::format("--{}: expected {}, got '{}'", name, expected_of(*key), *value));
    flags_.given[name] = *value;
  }

  void take_switch(const std::string& argument, const std::string& name) {
    const auto equals = argument.find('=');
    if (equals != std::string::npos)
      problems_.push_back(fmt::format("--{}: does not accept a value, got '{}'", name, argument.substr(equals + 1)));
    flags_.given[name] = "true";
  }

  // Accepts --name=value and --name value. The next argument is accepted whatever it is: a value may start with a
  // hyphen, e.g. a negative number.
  std::optional<std::string> value_of(const std::string& argument, const std::string& name) {
    if (const auto equals = argument.find('='); equals != std::string::npos && argument.starts_with("--"))
      return argument.substr(equals + 1);
    if (at_ + 1 < arguments_.size()) return arguments_[++at_];
    problems_.push_back(fmt::format("--{}: expected a value", name));
    return std::nullopt;
  }

  void refuse(const std::string& argument, const std::string& name) {
    const auto spelled = argument.substr(0, argument.find('='));
    if (const auto* refusal = find_refusal(name)) {
      problems_.push_back(fmt::format("{}: {}", spelled, refusal->reason));
      if (refusal->takes_value) skip_value(argument);
      return;
    }
    // If the intended flag takes a value, the next argument is that value. Without skipping it, the parser would stop
    // there and take it for PROGRAM, hiding all other problems.
    problems_.push_back(fmt::format("{}: unknown flag{}", spelled, nearest_name_hint(name, known_names())));
    const auto* meant = find_launch_flag(nearest_name(name, known_names()).value_or(""));
    if (meant != nullptr && !is_switch(*meant)) skip_value(argument);
  }

  // Skips the value of a rejected flag, which must not be taken for PROGRAM.
  void skip_value(const std::string& argument) {
    if (argument.find('=') == std::string::npos && at_ + 1 < arguments_.size() && !arguments_[at_ + 1].starts_with("-"))
      ++at_;
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

// Generated from the table of keys; keys of sections are listed with the values that they accept instead of a default.
std::string launch_flags_help() {
  std::string text;
  for (const auto& group : launch_groups()) {
    text += fmt::format("{}:\n", group.title);
    for (const auto& key : group.keys) {
      const auto* const otherwise = key.launch_default == nullptr ? "" : key.launch_default;
      text += fmt::format("  {:<34} {}{}{}\n", fmt::format("--{}{}", key.name, value_name(key)), help_of(key),
                          *otherwise == 0 ? "" : "; default: ", otherwise);
    }
    text += '\n';
  }
  for (const auto& section : launch_sections()) {
    const auto flags = flags_of(section);
    if (!flags.empty()) text += fmt::format("Keys of {}:\n", section.name);
    for (const auto* key : flags)
      text += fmt::format("  {:<46} {}\n", std::string("--") + key->name, expected_of(*key));
    if (!flags.empty()) text += '\n';
  }
  return text;
}

std::vector<std::string> launch_flag_names() {
  auto names = known_names();
  for (auto& name : names) name = "--" + name;
  return names;
}

}  // namespace accel::programs
