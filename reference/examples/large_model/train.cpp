// Runs inference with a model that is larger than the memory it may use. The weights stay in the checkpoint's files;
// each block is read when it is called, while the block before it runs.
#include <torch/torch.h>
#include <unistd.h>

#include <accel/accel.hpp>
#include <accel/checkpoint.hpp>
#include <accel/offload.hpp>
#include <filesystem>

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : inner(register_module("inner", torch::nn::Linear(width, 4 * width))),
        outer(register_module("outer", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + outer(torch::relu(inner(x))); }
  torch::nn::Linear inner, outer;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int num_blocks) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(width));
  }
  torch::Tensor forward(torch::Tensor values) {
    for (const auto& block : *blocks)
      values = accel::call(block->as<Block>(), values);  // loads the block, then calls it
    return values;
  }
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

// Runs a checkpoint of 24 blocks of 2 MB each with memory for 9 of them.
int infer(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  const torch::NoGradGuard no_grad;
  // Every rank uses a separate checkpoint, since simulated ranks share a process and its identifier.
  const auto folder = std::filesystem::temp_directory_path() / ("accel_large_model_" + std::to_string(getpid()) + "_" +
                                                                std::to_string(accelerator.process_index()));
  const auto input = torch::rand({4, 256});
  torch::Tensor expected;
  {
    Net whole(256, 24);
    expected = whole->forward(input);
    accel::PosixFiles files;
    accel::NamedTensors weights;
    for (const auto& item : whole->named_parameters()) weights.emplace_back(item.key(), item.value());
    accel::write_weights(files, folder.string(), weights, {.max_shard_bytes = 10'000'000});
  }

  auto net = accel::init_empty_weights([] { return Net(256, 24); });  // needs no memory
  auto model = accel::load_checkpoint_and_dispatch(
      net, folder.string(),
      {.device_map = "auto", .max_memory = accel::MaxMemory{{"cpu", "19MB"}}, .no_split_module_classes = {"Block"}});
  const auto output = model(input);
  std::filesystem::remove_all(folder);

  int64_t resident = 0;
  for (const auto& parameter : model->parameters()) resident += parameter.is_meta() ? 0 : int64_t(parameter.nbytes());
  const auto brought = model.statistics().bytes_peak;
  accelerator.print("on each of", accelerator.num_processes(), "ranks: bytes that stay in memory", resident,
                    "and that were brought at a time", brought);
  return output.equal(expected) && resident > 0 && resident + brought <= 19'000'000 ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, infer); }
