// The C++ half of the comparison of learning-rate schedules. One function decodes each part of a request:
// optimizer, schedule, what happens. properties/oracle/schedule_values.py decodes the same requests in Python.
#include "properties/gen/schedule_values.hpp"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "reference/core/errors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/optim/schedules/schedules.hpp"
#include "reference/optim/state_dict/param_group_options.hpp"
#include "sim/programs/experiments/optimizer_config.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::json;

constexpr int kEvery = 50;

// --- state dicts as JSON ---

// JSON has no infinity and no NaN, so these are written as {"float": "inf"}.
Json to_json(const Value& value) {
  if (value.is<bool>()) return value.as<bool>();
  if (value.is<std::int64_t>()) return value.as<std::int64_t>();
  if (value.is<double>())
    return std::isfinite(value.as<double>()) ? Json(value.as<double>())
                                             : Json{{"float", fmt::format("{}", value.as<double>())}};
  if (value.is<std::string>()) return value.as<std::string>();
  Json json;
  if (value.is<Value::List>()) {
    json = Json::array();
    for (const auto& item : value.as<Value::List>()) json.push_back(to_json(item));
  } else if (value.is<Value::Dict>()) {
    json = Json::object();
    for (const auto& [key, item] : value.as<Value::Dict>()) json[key] = to_json(item);
  }
  return json;
}

Value to_value(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_object() && json.size() == 1 && json.contains("float"))
    return std::strtod(json["float"].get<std::string>().c_str(), nullptr);
  if (json.is_array()) {
    Value::List list;
    for (const auto& item : json) list.push_back(to_value(item));
    return list;
  }
  if (!json.is_object()) return {};
  Value::Dict dict;
  for (const auto& [key, item] : json.items()) dict.emplace(key, to_value(item));
  return dict;
}

// --- what a request asks for ---

// The metric falls in plateaus with noise, so that ReduceLROnPlateau sees improvements, plateaus and relapses.
double metric(int step) { return 1.0 / (1 + step / 40) + step * 7919 % 97 / 1000.0; }

// The functions FACTORS of schedule_values.py; they must be the same in both languages.
EpochFactor factor_named(const std::string& name) {
  if (name == "inverse") return [](int epoch) { return 1.0 / (1 + epoch); };
  if (name == "saw") return [](int epoch) { return (epoch % 7 + 1) / 8.0; };
  // Both factors are exact binary fractions, so a product of many of them rounds equally in both languages.
  return [](int epoch) { return epoch % 3 == 0 ? 1.0078125 : 0.99609375; };
}

template <typename Optimizer, typename Options>
std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::vector<double>& lrs, Options defaults) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  // A schedule needs a parameter group but never the parameter, so a scalar is enough.
  for (std::size_t i = 0; i < lrs.size(); ++i)
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}).requires_grad_()});
  auto optimizer = std::make_unique<Optimizer>(std::move(groups), defaults);
  // Not as options of a new group: LibTorch 2.15 replaces an option that has the value of a new `Options`.
  for (std::size_t i = 0; i < lrs.size(); ++i) optimizer->param_groups()[i].options().set_lr(lrs[i]);
  return optimizer;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_named(const std::string& name, const std::vector<double>& lrs) {
  using namespace torch::optim;
  if (name == "sgd") return optimizer_of<SGD>(lrs, SGDOptions(0.5).momentum(0.25));
  if (name == "rmsprop") return optimizer_of<RMSprop>(lrs, RMSpropOptions(0.5));
  if (name == "adam") return optimizer_of<Adam>(lrs, AdamOptions(0.5));
  if (name == "adamw") return optimizer_of<AdamW>(lrs, AdamWOptions(0.5));
  return optimizer_of<Adagrad>(lrs, AdagradOptions(0.5));
}

template <typename T>
void take(const Json& config, const char* key, T& target) {
  if (config.contains(key)) target = config[key].get<T>();
}
template <typename T>
void take(const Json& config, const char* key, std::optional<T>& target) {
  if (config.contains(key)) target = config[key].get<T>();
}
void take(const Json& config, const char* key, PerGroup& target) {
  if (!config.contains(key)) return;
  target =
      config[key].is_array() ? PerGroup(config[key].get<std::vector<double>>()) : PerGroup(config[key].get<double>());
}

template <typename Schedule>
std::unique_ptr<LRScheduler> of_factors(const ScheduledOptimizer& optimizer, const Json& config) {
  if (!config["factors"].is_array()) return std::make_unique<Schedule>(optimizer, factor_named(config["factors"]));
  std::vector<EpochFactor> factors;
  // A list has one factor per parameter group.
  for (const auto& name : config["factors"]) factors.push_back(factor_named(name));
  return std::make_unique<Schedule>(optimizer, factors);
}

template <typename Options>
Options options_of(const Json& config) {
  Options options;
  optim::for_each_option(options, [&](const char* name, auto& value) { take(config, name, value); });
  return options;
}

std::unique_ptr<LRScheduler> by_name(const ScheduledOptimizer& optimizer, const Json& config) {
  GetSchedulerOptions options;
  take(config, "num_warmup_steps", options.num_warmup_steps);
  take(config, "num_training_steps", options.num_training_steps);
  options.scheduler_specific_kwargs = to_value(config["scheduler_specific_kwargs"]).as<Value::Dict>();
  return get_scheduler(config["type"], optimizer, options);
}

std::unique_ptr<LRScheduler> cyclic(const ScheduledOptimizer& optimizer, const Json& config) {
  auto options = options_of<CyclicLROptions>(config);
  take(config, "scale_mode", options.scale_mode);
  if (config.contains("scale_fn")) {
    options.scale_fn = [scale = factor_named(config["scale_fn"])](double x) { return scale(static_cast<int>(x)); };
  }
  return std::make_unique<CyclicLR>(optimizer, options);
}

// Most schedules are built by the experiment files' reader. That tests the reader against Python as well.
std::unique_ptr<LRScheduler> of_experiment(const ScheduledOptimizer& optimizer, Json config) {
  config.erase("last_epoch");
  YamlProblems problems("scheduler");
  const auto scheduler = programs::read_scheduler(YamlReader(YAML::Load(config.dump()), "", problems));
  problems.throw_if_any();
  return scheduler.make(optimizer);
}

// The schedule that a request describes, with its parts.
std::unique_ptr<LRScheduler> build(ScheduledOptimizer optimizer, const Json& config, const std::vector<double>& lrs) {
  const std::string name = config["name"];
  // `last_epoch` makes a schedule that continues from a given epoch without a state dict.
  if (config.contains("last_epoch")) optimizer = ScheduledOptimizer(*optimizer.optimizer, lrs, config["last_epoch"]);
  if (name == "lambda") return of_factors<LambdaLR>(optimizer, config);
  if (name == "multiplicative") return of_factors<MultiplicativeLR>(optimizer, config);
  if (name == "reduce_lr_on_plateau")
    return std::make_unique<ReduceLROnPlateau>(optimizer, options_of<ReduceLROnPlateauOptions>(config));
  if (name == "get_scheduler") return by_name(optimizer, config);
  const bool per_group = config.contains("max_lr") && config["max_lr"].is_array();
  if (per_group && name == "one_cycle")
    return std::make_unique<OneCycleLR>(optimizer, options_of<OneCycleLROptions>(config));
  if (per_group && name == "cyclic") return cyclic(optimizer, config);
  return of_experiment(optimizer, config);
}

// --- what happens ---

struct Training {
  explicit Training(const Json& request) : optimizer(optimizer_named(request["optimizer"], request["lrs"])) {
    const std::vector<double> lrs = request["lrs"];
    ScheduledOptimizer start(*optimizer);
    // A schedule that was created on the optimizer before has set its initial_lr, from which the next one starts.
    if (request.contains("made_before")) start.initial_lrs = build(start, request["made_before"], lrs)->initial_lrs();
    scheduler = build(start, request["scheduler"], lrs);
    take(request, "parts", parts);
  }
  void step(int number) {
    const bool follows_metric = dynamic_cast<ReduceLROnPlateau*>(scheduler.get()) != nullptr ||
                                dynamic_cast<GreedyLR*>(scheduler.get()) != nullptr;
    if (parts) {
      scheduler->step(static_cast<double>(number) / *parts);
    } else if (follows_metric) {
      scheduler->step(metric(number));
    } else {
      scheduler->step();
    }
  }
  [[nodiscard]] bool has_momentum() const { return optim::momentum_kind(optimizer->defaults()).has_value(); }
  [[nodiscard]] std::vector<double> rates() const {
    std::vector<double> rates;
    for (auto& group : optimizer->param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  }
  [[nodiscard]] std::vector<double> momentum() const {
    std::vector<double> momentum;
    for (auto& group : optimizer->param_groups()) momentum.push_back(optim::momentum_of(group.options()));
    return momentum;
  }

  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<LRScheduler> scheduler;
  std::optional<int> parts;  // of an epoch
};

// Resumes as a program does: the optimizer's own state restores its rates and momentum, so only the schedule's
// state comes from `state`.
Training resumed(const Json& request, const Json& state, const Training& before) {
  Training after(request);
  after.scheduler->load_state_dict(to_value(state));
  for (std::size_t group = 0; group < before.rates().size(); ++group) {
    auto& options = after.optimizer->param_groups()[group].options();
    options.set_lr(before.rates()[group]);
    if (before.has_momentum()) optim::set_momentum(options, before.momentum()[group]);
  }
  return after;
}

// A hash over all rows shows equality of every bit; every 50th row is kept to show where a difference starts.
Json described(const std::vector<std::vector<double>>& rows) {
  Sha256 hash;
  Json some = Json::array();
  for (std::size_t index = 0; index < rows.size(); ++index) {
    hash.update(rows[index].data(), rows[index].size() * sizeof(double));
    if (index % kEvery == 0) some.push_back(rows[index]);
  }
  return {{"sha256", hash.hex()}, {"some", some}};
}

// Steps the schedule as the request says and collects its values; an error ends it and becomes part of the answer.
Json values(const Json& request, const Json* state) {
  std::vector<std::vector<double>> rates, momentum;
  Json answer = Json::object();
  std::optional<Training> training;
  int step = 0;
  try {
    training.emplace(request);
    for (; step <= request["steps"].get<int>(); ++step) {
      if (step > 0) training->step(step);
      ensure(training->rates() == training->scheduler->get_last_lr(), "get_last_lr differs from the optimizer's rates");
      rates.push_back(training->scheduler->get_last_lr());
      if (training->has_momentum()) momentum.push_back(training->momentum());
      if (step != request["state_at"]) continue;
      answer["state"] = to_json(training->scheduler->state_dict());
      if (state != nullptr) *training = resumed(request, *state, *training);
    }
    // Options may be rejected by the reader (ConfigError) or by the schedule (ArgumentError). Python has one class
    // for both.
  } catch (const ConfigError&) {
    return {{"error", "ArgumentError"}, {"at", nullptr}};
  } catch (const ArgumentError&) {
    answer["error"] = "ArgumentError";
    answer["at"] = training ? Json(step) : Json();
    if (!training) return answer;
  }
  answer["lr"] = described(rates);
  if (training->has_momentum()) answer["momentum"] = described(momentum);
  return answer;
}

}  // namespace

nlohmann::json schedule_values(const nlohmann::json& request) { return values(request, nullptr); }
nlohmann::json resumed_schedule_values(const nlohmann::json& request, const nlohmann::json& state) {
  return values(request, &state);
}

}  // namespace accel::testing
