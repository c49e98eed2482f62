#pragma once

#include <cstdint>
#include <string>

#include "reference/config/yaml_reader.hpp"

namespace accel::programs {

struct ModelConfig {
  std::string name;           // mlp | cnn | resnet18 | gpt
  double dropout = 0.0;       // mlp, cnn, gpt
  std::int64_t hidden = 128;  // mlp
  std::int64_t width = 64;    // resnet18: channels of the first stage; gpt: size of an embedding
  std::int64_t layers = 1, heads = 1, block_size = 1;  // gpt; block_size is the context length, in bytes
  bool sync_batchnorm = false;                         // resnet18: batch statistics over all ranks
  bool bias = true;                                    // gpt: in linear layers and norms
};

/// Reads the model of a task. If the task is unknown, accepts the models of all tasks.
ModelConfig read_model(YamlReader reader, const std::string& task);

}  // namespace accel::programs
