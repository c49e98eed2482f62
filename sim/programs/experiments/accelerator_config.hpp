#pragma once

#include "reference/config/plugins/options.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/pipeline/pipeline_options.hpp"

namespace accel::programs {

/// Read the keys of an experiment's `accelerator`, `dataloader_config` and `pipeline` sections.
void read_accelerator(YamlReader reader, AcceleratorOptions& options);
void read_dataloader(YamlReader reader, DataLoaderConfiguration& config);
void read_pipeline(YamlReader reader, PipelineOptions& options);

}  // namespace accel::programs
