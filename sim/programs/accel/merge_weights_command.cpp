// `accel merge-weights`: combines the shards that ranks have saved into one file that any program can load.
// Source: accelerate/commands/merge.py; accelerate/utils/fsdp_utils.py, merge_fsdp_weights.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "reference/training_state/shard_files.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

struct MergeArguments {
  std::string checkpoint, output;
  bool unsafe_serialization = false, remove_checkpoint_dir = false;
};

// Returns the folder of the model's shards. Accepts the checkpoint folder as well as the folder of shards inside it.
std::string folder_of_model(const std::string& path) {
  check_config(fs::is_directory(path), "merge-weights: {} is not a folder; expected a checkpoint folder", path);
  const auto within = path + "/" + checkpoint::folder_of_shards(checkpoint::kModelShards, 0);
  return fs::is_directory(within) ? within : path;
}

// The weights in either form: that of PyTorch, or this library's own.
std::map<std::string, StoredWeight> weights_in(const std::string& folder) {
  if (checkpoint::is_distributed_checkpoint(folder)) return checkpoint::distributed_weights(folder);
  check_config(fs::exists(folder + "/rank0.safetensors"),
               "merge-weights: {}: neither .metadata nor rank0.safetensors; expected a checkpoint that was saved with "
               "SHARDED_STATE_DICT",
               folder);
  return checkpoint::read_shards(folder);
}

// Compares canonical paths, so that symbolic links and ".." cannot hide that the output would be removed.
bool is_inside_folder(const fs::path& path, const fs::path& folder) {
  const auto relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

int merge(const MergeArguments& arguments) {
  const auto folder = folder_of_model(arguments.checkpoint);
  // Checked before anything is read: afterwards the merged file would be deleted together with the shards.
  check_config(!arguments.remove_checkpoint_dir || !is_inside_folder(arguments.output, folder),
               "merge-weights: output {} is inside {}, which --remove_checkpoint_dir removes; choose another output",
               arguments.output, folder);
  // All tensors are loaded at once, so the machine's memory must hold the unsharded weights.
  NamedTensors tensors;
  for (const auto& [name, weight] : weights_in(folder)) tensors.emplace_back(name, weight.load());
  PosixFiles files;
  // One file of any size, as in Accelerate.
  write_weights(files, arguments.output, tensors,
                {.max_shard_bytes = INT64_MAX, .safe_serialization = !arguments.unsafe_serialization});
  // Removes only the model's shards: the optimizer and the rest of the checkpoint are not in the output.
  if (arguments.remove_checkpoint_dir) fs::remove_all(folder);
  std::cout << fmt::format("{} tensors in {}\n", tensors.size(), arguments.output);
  return kSuccess;
}

}  // namespace

int merge_weights_main(int argc, char** argv) {
  MergeArguments arguments;
  CLI::App app("Merges the weights of a sharded checkpoint into model.safetensors.", "accel merge-weights");
  app.add_option("CHECKPOINT", arguments.checkpoint, "Checkpoint folder, or the pytorch_model_fsdp_0 folder in it")
      ->required();
  app.add_option("OUTPUT", arguments.output, "Folder to write to")->required();
  app.add_flag("--unsafe_serialization,--unsafe-serialization", arguments.unsafe_serialization,
               "Write pytorch_model.bin instead");
  app.add_flag("--remove_checkpoint_dir,--remove-checkpoint-dir", arguments.remove_checkpoint_dir,
               "Remove the model's shards after merging");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return merge(arguments);
}

}  // namespace accel::programs
