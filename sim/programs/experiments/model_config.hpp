#pragma once

#include <cstdint>
#include <string>

#include "reference/config/yaml_reader.hpp"
#include "reference/models/gpt_options.hpp"

namespace accel::programs {

struct ModelConfig {
  std::string name;             // mlp | cnn | resnet18 | torchvision_resnet18 | torchvision_resnet50 | gpt
  double dropout = 0.0;         // mlp, cnn
  std::int64_t hidden = 128;    // mlp
  std::int64_t width = 64;      // ResNets: channels of the first stage
  bool sync_batchnorm = false;  // ResNets: batch statistics over all ranks
  bool small_images = false;    // torchvision's ResNets: a stem for small images
  models::GptOptions gpt = {};  // block_size is the context length, in bytes
};

/// Reads the model of a task. If the task is unknown, accepts the models of all tasks.
ModelConfig read_model(YamlReader reader, const std::string& task);

}  // namespace accel::programs
