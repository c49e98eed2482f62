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
  bool strict = false;  ///< missing and unexpected tensors are errors; else unexpected ones are a warning
  std::optional<DeviceMap> device_map =
      {};                           ///< absent: tensors keep their devices, those on the meta device go to the CPU
  std::string offload_folder = {};  ///< receives an index of the weights on disk, for `dispatch_model` and Python
  std::optional<at::ScalarType> dtype = {};  ///< dtype of floating-point tensors; absent: the model's
  bool offload_buffers = false;
  std::vector<std::string> keep_in_fp32_modules = {};  ///< exceptions from dtype float16
};

/// Loads weights from a file, an index or a folder (see `read_weights`) into a module, one tensor at a time. Throws
/// CheckpointError, which lists all mismatches, and leaves the module unchanged then. Parts that the device map assigns
/// to disk become meta tensors; the returned index says where their weights are, for `dispatch_model`: in the
/// checkpoint's own files, nothing is copied. Source: accelerate/utils/modeling.py, load_checkpoint_in_model.
OffloadIndex load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint,
                                      const LoadCheckpointOptions& options = {});

}  // namespace accel
