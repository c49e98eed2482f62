#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"
#include "reference/training_state/shard_files.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/runtime/exit_code.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

struct MergeArguments {
  std::string checkpoint, output;
  bool unsafe_serialization = false, remove_checkpoint_dir = false;
};

// The folder of a model's shards, or the checkpoint that it is in.
std::string folder_of_model(const std::string& path) {
  check_config(fs::is_directory(path), "merge-weights: {}: no such folder", path);
  const auto within = path + "/" + checkpoint::folder_of_shards(checkpoint::kModelShards, 0);
  return fs::is_directory(within) ? within : path;
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  const auto relative = fs::weakly_canonical(path).lexically_relative(fs::weakly_canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

int merge(const MergeArguments& arguments) {
  const auto folder = folder_of_model(arguments.checkpoint);
  check_config(!arguments.remove_checkpoint_dir || !lies_in(arguments.output, folder),
               "merge-weights: {} is in {}, which --remove_checkpoint_dir removes", arguments.output, folder);
  check_config(fs::exists(folder + "/rank0.safetensors"),
               "merge-weights: {}: no rank0.safetensors; expected a checkpoint that was saved with SHARDED_STATE_DICT",
               folder);
  NamedTensors tensors;
  for (const auto& [name, weight] : checkpoint::read_shards(folder)) tensors.emplace_back(name, weight.load());
  PosixFiles files;
  write_weights(files, arguments.output, tensors, {.safe_serialization = !arguments.unsafe_serialization});
  if (arguments.remove_checkpoint_dir) fs::remove_all(folder);  // the rest of a checkpoint is not in the output
  std::cout << fmt::format("{} tensors in {}\n", tensors.size(), arguments.output);
  return kSuccess;
}

}  // namespace

int merge_weights_main(int argc, char** argv) {
  MergeArguments arguments;
  CLI::App app("Puts the weights of a sharded checkpoint together: model.safetensors.", "accel merge-weights");
  app.add_option("CHECKPOINT", arguments.checkpoint, "A checkpoint folder, or its pytorch_model_fsdp_0")->required();
  app.add_option("OUTPUT", arguments.output, "Folder to write to")->required();
  app.add_flag("--unsafe_serialization,--unsafe-serialization", arguments.unsafe_serialization,
               "Write pytorch_model.bin");
  app.add_flag("--remove_checkpoint_dir,--remove-checkpoint-dir", arguments.remove_checkpoint_dir,
               "Remove the model's shards afterwards");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return merge(arguments);
}

}  // namespace accel::programs
