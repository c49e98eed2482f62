// Trains a model whose parameters, gradients and optimizer state are divided over the ranks by FSDP, and collects the
// full weights at the end.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>

namespace F = torch::nn::functional;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : inner(register_module("inner", torch::nn::Linear(width, 4 * width))),
        outer(register_module("outer", torch::nn::Linear(4 * width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + outer(torch::relu(inner(x))); }
  torch::nn::Linear inner, outer;
};
TORCH_MODULE(Block);

// Blocks are units: each is gathered from all ranks when it is called, and freed afterwards. LibTorch's modules have no
// hooks, so a unit is called through accel::call.
struct NetImpl : torch::nn::Module {
  NetImpl(int64_t width, int num_blocks)
      : first(register_module("first", torch::nn::Linear(3, width))),
        last(register_module("last", torch::nn::Linear(width, 3))) {
    register_module("blocks", blocks);
    for (int i = 0; i < num_blocks; ++i) blocks->push_back(Block(width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto values = first(x);
    for (const auto& block : *blocks)
      values = accel::call(block->as<Block>(), values);  // in place of block->as<Block>()->forward(values)
    return last(values);
  }
  torch::nn::Linear first, last;
  torch::nn::ModuleList blocks;
};
TORCH_MODULE(Net);

// Points in the unit cube. The label is the index of the largest coordinate.
accel::TensorDataset<at::Tensor, at::Tensor> make_points(int64_t count) {
  auto points = torch::rand({count, 3});
  return accel::TensorDataset(points, points.argmax(1));
}

int train(int, char**) {
  accel::FullyShardedDataParallelPlugin fsdp;
  fsdp.sharding_strategy = "FULL_SHARD";  // parameters, gradients and optimizer state: each rank keeps its shard
  fsdp.auto_wrap_policy = "TRANSFORMER_BASED_WRAP";
  fsdp.transformer_cls_names_to_wrap = {"Block"};
  fsdp.backward_prefetch = "BACKWARD_PRE";
  accel::Accelerator accelerator({.fsdp_plugin = fsdp});
  accel::set_seed(42);
  Net net(32, 4);
  // Created over the module's parameters, as usual; prepare() divides both over the ranks.
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  accel::DataLoader train_loader(make_points(4000), {.batch_size = 16, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adamw, train_loader);

  double loss_of_last = 0;
  for (auto& [point, label] : batches) {
    auto loss = F::cross_entropy(model(point), label);
    accelerator.backward(loss);
    accelerator.clip_grad_norm_(model.parameters(), 1.0);  // the norm over all ranks' shards
    optimizer.step();
    optimizer.zero_grad();
    loss_of_last = loss.item<double>();
  }
  const auto memory = accelerator.memory_account(model);
  accelerator.print("bytes of parameters on each rank", memory.now(accel::sharded::MemoryKind::kParameters));
  const auto state = accelerator.get_state_dict(model);  // full tensors, on the main process
  accelerator.print("parameters in all", state.size(), "loss", loss_of_last);
  return loss_of_last < 0.9 && (!accelerator.is_main_process() || state.size() == 4 * 4 + 4) ? 0 : 1;
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
