// Reads the `model` section. A task determines the shape of its samples, so each task accepts only some models.
#include "sim/programs/experiments/model_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

namespace accel::programs {
namespace {

const std::vector<std::string> kResNets = {"resnet18", "torchvision_resnet18", "torchvision_resnet50"};

// An unknown task has been reported already; all models are accepted then, to avoid a second message about the model.
std::vector<std::string> names_of(const std::string& task) {
  const std::map<std::string, std::vector<std::string>> families = {
      {"fashion_mnist", {"mlp", "cnn"}}, {"cifar_like", kResNets}, {"char_gpt", {"gpt"}}};
  if (const auto family = families.find(task); family != families.end()) return family->second;
  std::vector<std::string> names;
  for (const auto& [name, family] : families) names.insert(names.end(), family.begin(), family.end());
  return names;
}

void read_resnet(YamlReader& reader, ModelConfig& model) {
  reader.read(Field{"width", at_least_one}, model.width);
  reader.read(Field{"sync_batchnorm"}, model.sync_batchnorm);
  if (model.name != "resnet18") reader.read(Field{"small_images"}, model.small_images);
}

void read_gpt(YamlReader& reader, models::GptOptions& options) {
  // Sizes that are missing or wrong stay 0, with which no problem between options is reported.
  options = {.block_size = 0, .layers = 0, .heads = 0, .width = 0};
  reader.read(options);
  auto rope_parameters = reader.mapping("rope_parameters");
  rope_parameters.read(options.rope_parameters);
  rope_parameters.finish_keys();
  if (reader.has("rope_parameters") && options.positions != "rotary")
    reader.problem("rope_parameters", "has an effect with `positions: rotary` only; add this or remove the key");
  for (const auto& [name, text] : models::problems_between(options)) reader.problem(name, text);
}

}  // namespace

ModelConfig read_model(YamlReader reader, const std::string& task) {
  ModelConfig model;
  const auto names = names_of(task);
  const auto is_known = [&](const auto& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  model.name = reader.required<std::string>("name", is_known, fmt::format("{}", fmt::join(names, " or ")));
  if (!is_known(model.name)) return model;  // the valid keys depend on the name
  const bool is_resnet = std::find(kResNets.begin(), kResNets.end(), model.name) != kResNets.end();
  if (model.name == "mlp" || model.name == "cnn") reader.read(Field{"dropout", models::kDropout}, model.dropout);
  if (model.name == "mlp") reader.read(Field{"hidden", at_least_one}, model.hidden);
  if (is_resnet) read_resnet(reader, model);
  if (model.name == "gpt") read_gpt(reader, model.gpt);
  reader.finish_keys();
  return model;
}

}  // namespace accel::programs
