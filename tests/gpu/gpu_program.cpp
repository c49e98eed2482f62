// A training on GPUs that does one thing, named by its argument. cuda_lane_test.cpp runs it on simulated GPUs.
#include <dlfcn.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/models.hpp>
#include <accel/optim.hpp>
#include <accel/sync_batch_norm.hpp>
#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

#include "tests/support/fake_cuda/journal.hpp"

namespace {

using accel::testing::fake_cuda::Counts;

constexpr int kSteps = 6;

Counts counts() {
  using Function = void (*)(Counts*);
  static const auto function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "accel_fake_cuda_counts"));
  Counts counts;
  if (function != nullptr) function(&counts);
  return counts;
}

void print(const accel::Accelerator& accelerator, const std::string& text) {
  std::cout << "rank " + std::to_string(accelerator.process_index()) + ": " + text + "\n" << std::flush;
}

// Trains, and prints what the last step cost: earlier ones create buckets, communicators and moments.
void train(accel::AcceleratorOptions options, int num_steps = kSteps) {
  accel::Accelerator accelerator(std::move(options));
  accel::set_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
  torch::optim::Adam adam(net->parameters());
  accel::DataLoader loader(accel::TensorDataset(torch::rand({400, 8}), torch::zeros({400}, torch::kLong)),
                           {.batch_size = 4, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adam, loader);
  auto before = counts();
  for (auto& [inputs, labels] : batches) {
    auto loss = torch::nn::functional::cross_entropy(model(inputs), labels);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (--num_steps == 0) break;
    if (num_steps == 1) before = counts();
  }
  const auto after = counts();
  print(accelerator, "step: waits " + std::to_string(after.host_waits - before.host_waits) + ", pageable copies " +
                         std::to_string(after.pageable_copies - before.pageable_copies) + ", collectives " +
                         std::to_string(after.collectives - before.collectives));
}

accel::AcceleratorOptions sharded(const std::string& strategy, bool offloads = false) {
  return {.fsdp_plugin = accel::FullyShardedDataParallelPlugin{.sharding_strategy = strategy, .cpu_offload = offloads}};
}

accel::AcceleratorOptions zero(int stage) { return {.deepspeed_plugin = accel::DeepSpeedPlugin{.zero_stage = stage}}; }

// The weights are what they were when they were saved: steps on simulated GPUs change nothing, but loading must.
void save_and_load(const std::string& folder) {
  accel::Accelerator accelerator;
  accel::set_seed(1, {.device_specific = true});
  torch::nn::Linear net(8, 4), other(8, 4);
  auto model = accelerator.prepare(net);
  const auto saved = net->weight.cpu();
  const auto generator = accel::device_generator(accel::current_rank());
  const auto drawn = generator.get_state();
  accelerator.save_state(folder);
  {
    torch::NoGradGuard no_grad;
    net->weight.copy_(torch::ones({4, 8}));
  }
  accel::set_seed(99);
  accelerator.load_state(folder);
  const bool same_generator = torch::equal(generator.get_state(), drawn);
  print(accelerator, std::string(torch::equal(net->weight.cpu(), saved) ? "same weights" : "other weights") +
                         (same_generator ? ", same generator" : ", other generator") + " on " +
                         net->weight.device().str());
}

// Seeds of the device's generator after a load on another number of ranks than the checkpoint's.
void save_or_load_generators(const std::string& folder) {
  accel::Accelerator accelerator;
  torch::nn::Linear net(8, 4);
  auto model = accelerator.prepare(net);
  if (accelerator.num_processes() == 1)
    accelerator.save_state(folder);
  else
    accelerator.load_state(folder);
  print(accelerator, "seed " + std::to_string(accel::device_generator(accel::current_rank()).current_seed()));
}

// Each rank draws another number of times.
void draw() {
  accel::Accelerator accelerator;
  accel::set_seed(100 + accelerator.process_index());
  accelerator.wait_for_everyone();
  for (int draws = 0; draws <= accelerator.process_index(); ++draws) torch::rand({4}, accelerator.device());
  accelerator.wait_for_everyone();
  const auto generator = accel::device_generator(accel::current_rank());
  print(accelerator,
        "seed " + std::to_string(generator.current_seed()) + " offset " + std::to_string(generator.get_offset()));
}

// What a call of a captured step costs, as function and as graph, and whether the graph reads new inputs.
void replay() {
  accel::Accelerator accelerator;
  torch::nn::Sequential net(torch::nn::Linear(8, 16), torch::nn::ReLU(), torch::nn::Linear(16, 4));
  accel::optim::AdamW adamw(net->parameters());
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  auto step = accelerator.capture_step(
      [&, model = model, optimizer = optimizer](const at::Tensor& inputs) mutable {
        auto seen = torch::empty_like(inputs);
        seen.copy_(inputs);
        accelerator.backward(model(inputs).square().mean());
        optimizer.step();
        optimizer.zero_grad();
        return seen;
      },
      {.warm_up_steps = 2});
  std::string text;
  for (int call = 0; call < 5; ++call) {
    const auto inputs = torch::full({2, 8}, static_cast<float>(call)).to(accelerator.device());
    const auto before = counts();
    const auto seen = step(inputs);
    const auto after = counts();
    text += " launches " + std::to_string(after.launches - before.launches) + " waits " +
            std::to_string(after.host_waits - before.host_waits) + " sees " +
            std::to_string(static_cast<int>(seen[1][7].item<float>())) + ",";
  }
  print(accelerator, text);
}

void find_batch_size() {
  accel::Accelerator accelerator;
  const auto megabytes = accel::find_executable_batch_size(
      [&](std::int64_t size) {
        auto block = torch::empty({size << 20}, torch::dtype(torch::kByte).device(accelerator.device()));
        return block.numel() >> 20;
      },
      {.starting_batch_size = 4096, .reduce_batch_size = [](std::int64_t size) { return size / 2; }});
  print(accelerator, "fits " + std::to_string(megabytes) + " MB");
}

void run_out_of_memory() {
  accel::Accelerator accelerator;
  auto block = torch::empty({std::int64_t(4096) << 20}, torch::dtype(torch::kByte).device(accelerator.device()));
}

void send_around() {
  accel::Accelerator accelerator;
  auto& rank = accel::current_rank();
  const int next = (rank.rank + 1) % rank.world_size, before = (rank.rank + rank.world_size - 1) % rank.world_size;
  auto own = torch::full({70000}, rank.rank, torch::kFloat).to(rank.device), received = torch::zeros_like(own);
  if (rank.rank % 2 == 0) {
    rank.world.send(own, next).wait();
    rank.world.recv(received, before).wait();
  } else {
    rank.world.recv(received, before).wait();
    rank.world.send(own, next).wait();
  }
  print(accelerator, "got " + std::to_string(received.cpu()[69999].item<int>()));
}

void use_group_of_even_ranks() {
  accel::Accelerator accelerator({.init_process_group_kwargs = {.timeout = std::chrono::seconds(5)}});
  auto& rank = accel::current_rank();
  auto group = rank.new_group({0, 2});
  if (rank.rank % 2 == 0) {
    auto value = torch::full({2}, rank.rank + 1.0, torch::kFloat).to(rank.device);
    group.all_reduce(value).wait();
    print(accelerator, "even sum " + std::to_string(value.cpu()[0].item<int>()));
  }
  accelerator.wait_for_everyone();
}

void gather_metrics() {
  accel::Accelerator accelerator;
  accel::DataLoader loader(accel::TensorDataset(torch::arange(11, torch::kFloat).unsqueeze(1)), {.batch_size = 2});
  auto batches = accelerator.prepare(loader);
  std::vector<float> seen;
  for (auto& [rows] : batches) {
    const auto all = accelerator.gather_for_metrics(rows).cpu().flatten();
    for (std::int64_t i = 0; i < all.numel(); ++i) seen.push_back(all[i].item<float>());
  }
  std::sort(seen.begin(), seen.end());
  bool is_exact = seen.size() == 11;
  for (std::size_t i = 0; i < seen.size(); ++i) is_exact = is_exact && seen[i] == static_cast<float>(i);
  print(accelerator, is_exact ? "every sample once" : "samples lost or repeated");
}

void dispatch_batches() {
  accel::Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
  accel::DataLoader loader(accel::TensorDataset(torch::arange(8, torch::kFloat).unsqueeze(1)), {.batch_size = 2});
  auto batches = accelerator.prepare(loader);
  std::string text;
  for (auto& [rows] : batches) text += std::to_string(rows.cpu()[0][0].template item<int>()) + " ";
  print(accelerator, text);
}

void free_all() {
  accel::Accelerator accelerator;
  const auto before = counts().device_bytes;
  {
    torch::nn::Linear net(4096, 4096);
    torch::optim::Adam adam(net->parameters());
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(model(torch::rand({4, 4096}).to(accelerator.device())).sum());
    optimizer.step();
    accelerator.free_memory(model, optimizer);
  }
  accel::clear_device_cache();
  print(accelerator, counts().device_bytes - before <= 200 << 20 ? "freed" : "kept");
}

void synchronize_generators() {
  accel::Accelerator accelerator;
  accel::set_seed(1, {.device_specific = true});
  accel::synchronize_rng_states({"torch", "cuda"});
  print(accelerator, "seed " + std::to_string(accel::device_generator(accel::current_rank()).current_seed()));
}

void disagree() {
  accel::Accelerator accelerator;
  auto value = torch::zeros({accelerator.process_index() + 1}).to(accelerator.device());
  accel::current_rank().world.all_reduce(value).wait();
  value.cpu();
}

// Rank 1 does something else than rank 0, which sums on its GPU and reads the sum.
void sum_while_rank_1(const std::function<void(const accel::Group& world)>& act) {
  accel::Accelerator accelerator;
  const auto& world = accel::current_rank().world;
  if (accelerator.process_index() == 1) return act(world);
  auto value = torch::ones({4}, accelerator.device());
  world.all_reduce(value).wait();
  value.cpu();
}

void sum_late(const accel::Group& world) {
  std::this_thread::sleep_for(std::chrono::seconds(4));
  auto value = torch::ones({4}, accel::current_rank().device);
  world.all_reduce(value).wait();
}

void sum_on_the_cpu(const accel::Group& world) {
  auto value = torch::ones({4});
  world.all_reduce(value).wait();
}

void exchange_objects() {
  accel::Accelerator accelerator;
  const auto names =
      accel::gather_object(std::vector<std::string>{"of " + std::to_string(accelerator.process_index())});
  const auto before = counts();
  accel::gather_object(names);
  accelerator.check_trigger();
  std::string text;
  for (const auto& name : names) text += name + "; ";
  print(accelerator, text + "waits " + std::to_string(counts().host_waits - before.host_waits));
}

// What NCCL cannot do; nothing of it reaches a collective.
void call_what_nccl_lacks() {
  accel::Accelerator accelerator;
  const auto& rank = accel::current_rank();
  auto flags = torch::ones({2}, torch::kInt).to(rank.device), shorts = torch::ones({2}, torch::kShort).to(rank.device);
  const auto message_of = [](auto call) -> std::string {
    try {
      call();
    } catch (const accel::ArgumentError& error) {
      return error.what();
    }
    return "accepted";
  };
  for (const auto& message : {message_of([&] { rank.world.all_reduce(flags, accel::ReduceOp::kBitwiseAnd).wait(); }),
                              message_of([&] { rank.world.all_reduce(shorts).wait(); }),
                              message_of([&] { rank.world.send(flags, 1 - rank.rank, /*tag=*/3).wait(); })})
    print(accelerator, message);
  // The CPU's copies go through Gloo.
  auto on_host = flags.cpu();
  rank.world.all_reduce(on_host, accel::ReduceOp::kBitwiseAnd).wait();
}

// Prints what the last step cost.
template <typename Net>
void train_model(Net net, const at::Tensor& inputs) {
  accel::Accelerator accelerator;
  accel::optim::AdamW adam(net->parameters(), {.lr = 1e-3});
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const auto on_device = inputs.to(accelerator.device());
  auto before = counts();
  for (int step = 0; step < kSteps; ++step) {
    if (step + 1 == kSteps) before = counts();
    accelerator.backward(model(on_device).square().mean());
    accelerator.clip_grad_norm_(net->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  const auto after = counts();
  print(accelerator, "step: waits " + std::to_string(after.host_waits - before.host_waits) + ", pageable copies " +
                         std::to_string(after.pageable_copies - before.pageable_copies));
}

void reduce_on_gpu() {
  accel::Accelerator accelerator;
  const auto own = torch::full({3}, accelerator.process_index() + 1.0).to(accelerator.device());
  const auto sum = accelerator.reduce(own, "sum").cpu();
  const auto all = accelerator.gather(own).cpu();
  print(accelerator, "sum " + std::to_string(sum[0].item<float>()) + " of " + std::to_string(all.size(0)) + " on " +
                         accelerator.device().str());
}

[[noreturn]] void fail_on_rank_1(int code) {
  accel::Accelerator accelerator;
  train({});
  if (accelerator.process_index() == 1) {
    if (code == 2) throw accel::ConfigError("planted: wrong settings");
    if (code > 2) std::exit(code);
    throw std::runtime_error("planted: rank 1 gives up");
  }
  accelerator.wait_for_everyone();
  std::exit(0);
}

int run(int argc, char** argv) {
  const std::map<std::string, std::function<void()>> modes{
      {"train", [] { train({}); }},
      {"fp16", [] { train({.mixed_precision = "fp16"}); }},
      {"accumulate", [] { train({.gradient_accumulation_steps = 2}); }},
      {"bf16", [] { train({.mixed_precision = "bf16"}); }},
      {"sharded", [] { train(sharded("FULL_SHARD")); }},
      {"shard_grad_op", [] { train(sharded("SHARD_GRAD_OP")); }},
      {"no_shard", [] { train(sharded("NO_SHARD")); }},
      {"hybrid_shard", [] { train(sharded("HYBRID_SHARD")); }},
      {"offloaded", [] { train(sharded("FULL_SHARD", /*offloads=*/true)); }},
      {"zero1", [] { train(zero(1)); }},
      {"zero2", [] { train(zero(2)); }},
      {"zero3", [] { train(zero(3)); }},
      {"save_and_load", [&] { save_and_load(argv[2]); }},
      {"generators", [&] { save_or_load_generators(argv[2]); }},
      {"draw", draw},
      {"replay", replay},
      {"find_batch_size", find_batch_size},
      {"out_of_memory", run_out_of_memory},
      {"send", send_around},
      {"even_group", use_group_of_even_ranks},
      {"metrics", gather_metrics},
      {"dispatch", dispatch_batches},
      {"free", free_all},
      {"synchronize", synchronize_generators},
      {"disagree", disagree},
      {"leave", [] { sum_while_rank_1([](auto&) {}); }},
      {"late", [] { sum_while_rank_1(sum_late); }},
      {"on_the_cpu", [] { sum_while_rank_1(sum_on_the_cpu); }},
      {"objects", exchange_objects},
      {"reduce", reduce_on_gpu},
      {"unsupported", call_what_nccl_lacks},
      {"batch_norm",
       [] {
         torch::nn::Sequential net(torch::nn::Linear(8, 4), torch::nn::BatchNorm1d(4));
         accel::convert_sync_batchnorm(*net);
         train_model(net, torch::rand({4, 8}));
       }},
      {"cnn",
       [] {
         train_model(accel::models::cnn({}), torch::rand({4, 1, 28, 28}));
       }},
      {"gpt",
       [] {
         train_model(accel::models::gpt({.block_size = 16, .layers = 2, .heads = 2, .width = 32}),
                     torch::zeros({2, 16}, torch::kLong));
       }},
      {"throw", [] { fail_on_rank_1(1); }},
      {"config_error", [] { fail_on_rank_1(2); }},
      {"exit", [] { fail_on_rank_1(7); }},
      {"nothing", [] { accel::Accelerator accelerator; }},
  };
  modes.at(argc > 1 ? argv[1] : "train")();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, run); }
