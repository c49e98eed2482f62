#include "sim/programs/experiments/optimizer_config.hpp"

#include <fmt/ranges.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <map>

namespace accel::programs {
namespace {

constexpr auto kLibTorchSgd = "sgd";

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

void read_value(YamlReader& reader, const std::string& name, double& number) {
  constexpr FieldRule finite{"a finite number", [](double value) { return std::isfinite(value); }};
  const bool is_rate = name == "lr";
  reader.read(Field{.name = name.c_str(), .rule = is_rate ? finite_at_least_zero : finite, .is_required = is_rate},
              number);
}

void read_value(YamlReader& reader, const std::string& name, bool& flag) {
  flag = reader.optional<bool>(name).value_or(flag);
}

void read_value(YamlReader& reader, const std::string& name, optim::NumberPair& pair) {
  const auto two_finite = [](const std::vector<double>& list) {
    return list.size() == 2 && std::isfinite(list[0]) && std::isfinite(list[1]);
  };
  if (const auto list = reader.optional<std::vector<double>>(name, two_finite, "a list of two finite numbers"))
    pair = {(*list)[0], (*list)[1]};
}

}  // namespace

OptimizerConfig read_optimizer(YamlReader reader) {
  const auto known = optimizers_by_name();
  const auto name = reader.required<std::string>(
      "name", [&](const auto& n) { return known.contains(n); }, names_of(known));
  if (!known.contains(name)) {  // then which other keys there may be is not known
    double lr = 0;
    read_value(reader, "lr", lr);
    return {};
  }
  auto config = known.at(name);
  std::visit(
      [&](auto& options) {
        optim::for_each_option(options, [&](const std::string& key, auto& value) {
          if (name == kLibTorchSgd && key == "maximize") return;  // LibTorch's cannot
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
        if constexpr (std::same_as<Options, optim::SGDOptions>) {
          torch::optim::SGDOptions plain(options.lr);
          options.assign_to(plain);
          if (config.name == kLibTorchSgd) return std::make_unique<torch::optim::SGD>(std::move(parameters), plain);
        }
        return std::make_unique<optim::MultiTensorOptimizer<Options>>(std::move(parameters), options);
      },
      config.options);
}

}  // namespace accel::programs
