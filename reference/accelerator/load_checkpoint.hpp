#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace accel {

struct LoadCheckpointOptions {
  bool strict = false;  ///< tensors of the model that are not in the files, or the other way round, are an error
};

/// Weights from a file, an index or a folder (see `read_weights`) into a module that is whole, one tensor at a time. Throws CheckpointError
/// with all that does not fit, and changes nothing then. Source: accelerate/utils/modeling.py, load_checkpoint_in_model.
void load_checkpoint_in_model(torch::nn::Module& module, const std::string& checkpoint, LoadCheckpointOptions options = {});

}  // namespace accel
