// Reads the `model` section. A task determines the shape of its samples, so each task accepts only some models.
#include "sim/programs/experiments/model_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

namespace accel::programs {
namespace {

constexpr FieldRule zero_to_below_one{"a number in [0, 1)", [](double value) { return value >= 0 && value < 1; }};

// An unknown task has been reported already; all models are accepted then, to avoid a second message about the model.
std::vector<std::string> names_of(const std::string& task) {
  const std::map<std::string, std::vector<std::string>> families = {
      {"fashion_mnist", {"mlp", "cnn"}}, {"cifar_like", {"resnet18"}}, {"char_gpt", {"gpt"}}};
  if (const auto family = families.find(task); family != families.end()) return family->second;
  return {"mlp", "cnn", "resnet18", "gpt"};
}

// The sizes of a gpt have no defaults, unlike other models: no size is typical for a byte-level model.
void read_gpt(YamlReader& reader, ModelConfig& model) {
  for (const auto& [key, value] : {std::pair{"layers", &model.layers},
                                   {"heads", &model.heads},
                                   {"width", &model.width},
                                   {"block_size", &model.block_size}}) {
    *value = reader.required<std::int64_t>(key, at_least_one);
  }
  // Attention splits the width evenly among its heads. A wrong `heads` has been reported already, hence the first test.
  if (model.heads >= 1 && model.width % model.heads != 0) {
    reader.problem("heads", fmt::format("width {} is not divisible by {} heads; expected a multiple of {}", model.width,
                                        model.heads, model.heads));
  }
  reader.read(Field{"bias"}, model.bias);
}

}  // namespace

ModelConfig read_model(YamlReader reader, const std::string& task) {
  ModelConfig model;
  const auto names = names_of(task);
  const auto is_known = [&](const auto& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  model.name = reader.required<std::string>("name", is_known, fmt::format("{}", fmt::join(names, " or ")));
  if (!is_known(model.name)) return model;  // the valid keys depend on the name
  if (model.name != "resnet18") reader.read(Field{"dropout", zero_to_below_one}, model.dropout);
  if (model.name == "mlp") reader.read(Field{"hidden", at_least_one}, model.hidden);
  if (model.name == "resnet18") {
    reader.read(Field{"width", at_least_one}, model.width);
    reader.read(Field{"sync_batchnorm"}, model.sync_batchnorm);
  }
  if (model.name == "gpt") read_gpt(reader, model);
  reader.finish_keys();
  return model;
}

}  // namespace accel::programs
