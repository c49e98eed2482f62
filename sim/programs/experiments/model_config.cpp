#include "sim/programs/experiments/model_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "sim/programs/experiments/key_rules.hpp"

namespace accel::programs {
namespace {

std::vector<std::string> names_of(const std::string& task) {
  const std::map<std::string, std::vector<std::string>> families = {
      {"fashion_mnist", {"mlp", "cnn"}}, {"cifar_like", {"resnet18"}}, {"char_gpt", {"gpt"}}};
  if (const auto family = families.find(task); family != families.end()) return family->second;
  return {"mlp", "cnn", "resnet18", "gpt"};
}

void read_gpt(YamlReader& reader, ModelConfig& model) {
  for (const auto& [key, value] : {std::pair{"layers", &model.layers},
                                   {"heads", &model.heads},
                                   {"width", &model.width},
                                   {"block_size", &model.block_size}}) {
    *value = reader.required<std::int64_t>(key, at_least_one, "1 or more");
  }
  if (model.heads >= 1 && model.width % model.heads != 0) {
    reader.problem("heads", fmt::format("a width of {} does not divide by {} heads; expected a multiple of {}",
                                        model.width, model.heads, model.heads));
  }
  model.bias = reader.optional<bool>("bias").value_or(true);
}

}  // namespace

ModelConfig read_model(YamlReader reader, const std::string& task) {
  ModelConfig model;
  const auto names = names_of(task);
  const auto is_known = [&](const auto& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  model.name = reader.required<std::string>("name", is_known, fmt::format("{}", fmt::join(names, " or ")));
  if (!is_known(model.name)) return model;  // which keys there are depends on the name
  if (model.name != "resnet18") {
    model.dropout = reader
                        .optional<double>(
                            "dropout", [](const double& p) { return p >= 0 && p < 1; }, "a number in [0, 1)")
                        .value_or(0.0);
  }
  if (model.name == "mlp")
    model.hidden = reader.optional<std::int64_t>("hidden", at_least_one, "1 or more").value_or(128);
  if (model.name == "resnet18") {
    model.width = reader.optional<std::int64_t>("width", at_least_one, "1 or more").value_or(64);
    model.sync_batchnorm = reader.optional<bool>("sync_batchnorm").value_or(false);
  }
  if (model.name == "gpt") read_gpt(reader, model);
  reader.finish_keys();
  return model;
}

}  // namespace accel::programs
