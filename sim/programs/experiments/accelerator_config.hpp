#pragma once

#include "reference/config/plugins/options.hpp"
#include "reference/config/yaml_reader.hpp"

namespace accel::programs {

/// Read the keys of an experiment's `accelerator` and `dataloader_config` sections.
void read_accelerator(YamlReader reader, AcceleratorOptions& options);
void read_dataloader(YamlReader reader, DataLoaderConfiguration& config);

}  // namespace accel::programs
