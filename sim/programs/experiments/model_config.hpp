#pragma once

#include <cstdint>
#include <string>

#include "reference/config/yaml_reader.hpp"

namespace accel::programs {

struct ModelConfig {
  std::string name;           // mlp | cnn | resnet18 | gpt
  double dropout = 0.0;       // mlp, cnn, gpt
  std::int64_t hidden = 128;  // mlp
  std::int64_t width = 64;    // resnet18: channels of the first stage; gpt: numbers that stand for a byte
  std::int64_t layers = 1, heads = 1, block_size = 1;  // gpt; a block is what it sees at once, in bytes
  bool sync_batchnorm = false;                         // resnet18: batch statistics of all ranks together
  bool bias = true;                                    // gpt: of linear layers and norms
};

/// The model of a task; of any task, if that is none.
ModelConfig read_model(YamlReader reader, const std::string& task);

}  // namespace accel::programs
