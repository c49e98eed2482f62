// Reads the `optimizer` and `scheduler` sections. Names, keys and rules come from the tables in reference/optim, so a
// new optimizer or schedule becomes available in experiments without a change here.
#include "sim/programs/experiments/optimizer_config.hpp"

#include <fmt/ranges.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedules.hpp"

namespace accel::programs {
namespace {

// LibTorch's own class, not in the table: Python's torch.optim.SGD is not fused by default, and bits must match it.
constexpr auto kLibTorchSgd = "sgd";

// Built on each call, because it is needed only once per experiment. The values are default options of each class.
std::map<std::string, OptimizerConfig> optimizers_by_name() {
  std::map<std::string, OptimizerConfig> by_name{{kLibTorchSgd, {kLibTorchSgd, optim::SGDOptions()}}};
  optim::for_each_optimizer([&]<typename Options>(const optim::OptimizerEntry<Options>& entry) {
    by_name[entry.experiment] = {entry.experiment, Options()};
  });
  return by_name;
}

std::string names_of(const std::map<std::string, OptimizerConfig>& optimizers) {
  std::vector<std::string> names;
  for (const auto& [name, config] : optimizers) names.push_back(name);
  return fmt::format("one of {}", fmt::join(names, ", "));
}

// `lr` has no default here, unlike in Python: an experiment should state it.
void read_value(YamlReader& reader, const std::string& name, double& number) {
  constexpr FieldRule finite{"a finite number", [](double value) { return std::isfinite(value); }};
  const bool is_rate = name == "lr";
  reader.read(Field{.name = name.c_str(), .rule = is_rate ? finite_at_least_zero : finite, .is_required = is_rate},
              number);
}

void read_value(YamlReader& reader, const std::string& name, bool& flag) {
  flag = reader.optional<bool>(name).value_or(flag);
}

void read_value(YamlReader& reader, const std::string& name, int& number) {
  number = reader.optional<int>(name).value_or(number);
}

template <typename T>
void read_value(YamlReader& reader, const std::string& name, std::optional<T>& value) {
  value = reader.optional<T>(name);
}

template <typename... Number>
void read_value(YamlReader& reader, const std::string& name, std::tuple<Number...>& numbers) {
  constexpr auto kSize = sizeof...(Number);
  const auto all_finite = [](const std::vector<double>& list) {
    return list.size() == kSize && std::all_of(list.begin(), list.end(), [](double n) { return std::isfinite(n); });
  };
  constexpr auto kExpected = kSize == 2 ? "a list of two finite numbers" : "a list of three finite numbers";
  if (const auto list = reader.optional<std::vector<double>>(name, all_finite, kExpected)) {
    auto next = list->begin();
    std::apply([&](auto&... number) { ((number = *next++), ...); }, numbers);
  }
}

std::optional<double> finite_number(const std::string& word) {
  double number = 0;
  return YAML::convert<double>::decode(YAML::Node(word), number) && std::isfinite(number) ? std::optional(number)
                                                                                          : std::nullopt;
}

// Adafactor's eps. yaml-cpp reads a null as the word.
void read_value(YamlReader& reader, const std::string& name, optim::OptionalNumberPair& pair) {
  const auto is_null = [](const std::string& word) { return word == "null"; };
  const auto fits = [&](const std::vector<std::string>& list) {
    return list.size() == 2 && (is_null(list[0]) || finite_number(list[0])) && finite_number(list[1]);
  };
  constexpr auto kExpected = "a list of null or a finite number and a finite number";
  if (const auto list = reader.optional<std::vector<std::string>>(name, fits, kExpected))
    pair = {finite_number((*list)[0]), *finite_number((*list)[1])};
}

// Reads one argument of a schedule. `Checked` is the type in the file and `T` the member's: they differ for optional
// arguments, whose member is an std::optional.
template <typename Options, typename T, typename Checked>
void read_field(YamlReader& reader, const optim::OptionField<Options, T, Checked>& field, Options& options) {
  const auto value = reader.optional<Checked>(field.name, field.allowed.holds, field.allowed.expected);
  if (value) {
    options.*field.member = *value;
  } else if (!reader.has(field.name)) {
    if (field.presence == optim::Presence::kRequired) reader.missing(field.name);
  } else {
    // The key exists but its value is wrong, which has been reported. A default value keeps `problems_between` from
    // reporting the key as missing.
    options.*field.member = Checked();
  }
}

template <typename Options>
Options read_options(YamlReader& reader) {
  Options options;
  optim::for_each_field<Options>([&](const auto& field) { read_field(reader, field, options); });
  // Rules that involve several arguments, such as "milestones or total_steps"; only some schedules have them.
  if constexpr (requires { options.problems_between(); }) {
    for (const auto& problem : options.problems_between()) reader.problem(problem.name, problem.text);
  }
  return options;
}

// The schedule `linear`: linear warm-up, then linear decay to zero.
struct LinearOptions {
  int warmup_steps = 0, total_steps = 0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"warmup_steps", &LinearOptions::warmup_steps, kCount, Presence::kRequired},
                      OptionField{"total_steps", &LinearOptions::total_steps, kCountAboveZero, Presence::kRequired}};
  }
};

// The factor is computed in double from integers, exactly as in the contract's Python lambda, so that rates have equal
// bits.
ScheduleFactory linear(YamlReader& reader) {
  const auto [warmup, total] = read_options<LinearOptions>(reader);
  return schedule<LambdaLR>(EpochFactor([warmup = warmup, total = total](int k) {
    if (k < warmup) return static_cast<double>(k + 1) / (warmup + 1);
    return std::max(0.0, static_cast<double>(total - k) / std::max(1, total - warmup));
  }));
}

struct MultiplicativeOptions {
  double factor = 0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"factor", &MultiplicativeOptions::factor, kFiniteAtLeastZero, Presence::kRequired}};
  }
};

// Python's class takes a function; a file can only hold a number, so the factor is constant.
ScheduleFactory multiplicative(YamlReader& reader) {
  const auto factor = read_options<MultiplicativeOptions>(reader).factor;
  return schedule<MultiplicativeLR>(EpochFactor([=](int) { return factor; }));
}

// The parts of a combined schedule are read like schedules themselves, so that they may be nested.
std::vector<SchedulerConfig> read_parts(YamlReader& reader) {
  std::vector<SchedulerConfig> parts;
  for (auto& part : reader.required_mappings("schedulers")) parts.push_back(read_scheduler(std::move(part)));
  if (parts.empty() && reader.has("schedulers"))
    reader.problem("schedulers", "expected at least one schedule, got none");
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.follows_metric(); })) {
    reader.problem("schedulers", fmt::format("{} needs a metric, which combined schedules do not pass on; use it alone",
                                             SchedulerConfig::kPlateau));
  }
  return parts;
}

std::vector<ScheduleFactory> factories(const std::vector<SchedulerConfig>& parts) {
  std::vector<ScheduleFactory> makes;
  for (const auto& part : parts) makes.push_back(part.make);
  return makes;
}

ScheduleFactory chained(YamlReader& reader) { return schedule<ChainedScheduler>(factories(read_parts(reader))); }

ScheduleFactory sequential(YamlReader& reader) {
  const auto parts = read_parts(reader);
  const auto milestones = reader.required<std::vector<int>>(
      "milestones", [](const auto& list) { return std::is_sorted(list.begin(), list.end()); },
      "epochs in ascending order");
  if (!parts.empty() && reader.has("milestones") && milestones.size() + 1 != parts.size()) {
    reader.problem("milestones", fmt::format("expected {} milestones, one fewer than schedulers, got {}",
                                             parts.size() - 1, milestones.size()));
  }
  // SequentialLR starts a part by step(0), and combined schedules have no step(epoch), as in PyTorch.
  for (std::size_t index = 1; index < parts.size(); ++index) {
    if (parts[index].name != "sequential" && parts[index].name != "chained") continue;
    reader.problem("schedulers",
                   fmt::format("{}: {} cannot start at a milestone; put it first", index, parts[index].name));
  }
  return schedule<SequentialLR>(factories(parts), milestones);
}

using Read = std::function<ScheduleFactory(YamlReader&)>;

// A reader returns a factory instead of a schedule, because schedules need an optimizer and each rank has its own. The
// options are read once and captured by value.
std::map<std::string, Read> schedules_by_name() {
  std::map<std::string, Read> by_name{
      {"linear", linear}, {"multiplicative", multiplicative}, {"sequential", sequential}, {"chained", chained}};
  optim::for_each_schedule<&optim::ScheduleNames::experiment>(
      [&]<typename Entry>(const char* name, const Entry& entry) {
        by_name[name] = [make = entry.make](YamlReader& reader) -> ScheduleFactory {
          return [make, options = read_options<typename Entry::Options>(reader)](const ScheduledOptimizer& optimizer) {
            return make(optimizer, options);
          };
        };
      });
  return by_name;
}

// Constant after its initialization, which C++ makes thread-safe.
const std::map<std::string, Read>& schedules() {
  static const auto kSchedules = schedules_by_name();
  return kSchedules;
}

std::string names() {
  std::vector<std::string> names;
  for (const auto& entry : schedules()) names.push_back(entry.first);
  return fmt::format("one of {}", fmt::join(names, ", "));
}

}  // namespace

OptimizerConfig read_optimizer(YamlReader reader) {
  const auto known = optimizers_by_name();
  const auto name = reader.required<std::string>(
      "name", [&](const auto& n) { return known.contains(n); }, names_of(known));
  if (!known.contains(name)) {  // the valid keys depend on the name; only `lr` is common to all
    double lr = 0;
    read_value(reader, "lr", lr);
    return {};
  }
  auto config = known.at(name);
  std::visit(
      [&](auto& options) {
        optim::for_each_option(options, [&](const std::string& key, auto& value) {
          if (name == kLibTorchSgd && key == "maximize") return;  // unsupported by LibTorch's SGD
          read_value(reader, key, value);
        });
        for (const auto& problem : problems_of(options)) reader.problem(problem.name, problem.text);
      },
      config.options);
  reader.finish_keys();
  return config;
}

std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerConfig& config,
                                                         std::vector<at::Tensor> parameters) {
  return std::visit(
      [&]<typename Options>(const Options& options) -> std::unique_ptr<torch::optim::Optimizer> {
        // `sgd` and `fused_sgd` have the same options; only the name decides between LibTorch's class and the fused
        // one.
        if constexpr (std::same_as<Options, optim::SGDOptions>) {
          torch::optim::SGDOptions plain(options.lr);
          options.assign_to(plain);
          if (config.name == kLibTorchSgd) return std::make_unique<torch::optim::SGD>(std::move(parameters), plain);
        }
        return std::make_unique<optim::MultiTensorOptimizer<Options>>(std::move(parameters), options);
      },
      config.options);
}

SchedulerConfig read_scheduler(YamlReader reader) {
  SchedulerConfig config;
  config.name = reader.required<std::string>(
      "name", [](const auto& name) { return schedules().contains(name); }, names());
  const auto read = schedules().find(config.name);
  if (read == schedules().end()) return config;  // the valid keys depend on the name
  config.make = read->second(reader);
  reader.finish_keys();
  return config;
}

std::unique_ptr<LRScheduler> build_scheduler(const std::optional<SchedulerConfig>& config,
                                             torch::optim::Optimizer& optimizer) {
  if (!config) return nullptr;
  try {
    return config->make(optimizer);
  } catch (const ArgumentError& error) {  // rules that depend on the optimizer, e.g. on its momentum
    throw ConfigError(fmt::format("scheduler: {}: {}", config->name, error.what()));
  }
}

}  // namespace accel::programs
