#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/offload/device_map.hpp"
#include "reference/offload/offload_files.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

struct LoadCheckpointOptions {
  bool strict = false;  ///< tensors of the model that are not in the files, or the other way round, are an error
  std::optional<DeviceMap> device_map =
      {};                           ///< absent: tensors are filled where they are, those of the meta device on the CPU
  std::string offload_folder = {};  ///< gets an index of what is on disk, for `dispatch_model` and Python
  std::optional<at::ScalarType> dtype = {};  ///< of floating point; absent: the model's
  bool offload_buffers = false;
  std::vector<std::string> keep_in_fp32_modules = {};  ///< under dtype float16
};

/// Weights from a file, an index or a folder (see `read_weights`) into a module, one tensor at a time. Throws
/// CheckpointError with all that does not fit, and changes nothing then. Parts that the device map has on disk become
/// tensors of the meta device; where their weights lie is returned, for `dispatch_model`: the checkpoint's own files,
/// of which nothing is copied. Source: accelerate/utils/modeling.py, load_checkpoint_in_model.
OffloadIndex load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                                      const LoadCheckpointOptions& options = {});

}  // namespace accel
