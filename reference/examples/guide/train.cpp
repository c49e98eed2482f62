// The samples of reference/guide that no other example contains, one function per sample. A test compares the guide's
// code with these lines, and this program checks what they compute.
#include <torch/torch.h>
#include <unistd.h>

#include <accel/accel.hpp>
#include <accel/metrics.hpp>
#include <accel/offload.hpp>
#include <accel/optim.hpp>
#include <accel/tracking.hpp>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace fs = std::filesystem;

// A map-style dataset: anything with size() and get(index).
class Squares {
 public:
  explicit Squares(int64_t count) : count_(count) {}
  int64_t size() const { return count_; }
  std::pair<at::Tensor, at::Tensor> get(int64_t index) const {
    const auto x = torch::full({1}, double(index) / double(count_), torch::kFloat);
    return {x, x.square()};
  }

 private:
  int64_t count_;
};

// Token sequences of different lengths, each with a label.
class Sentences {
 public:
  int64_t size() const { return 10; }
  std::pair<at::Tensor, int64_t> get(int64_t index) const { return {torch::arange(1 + index % 4), index % 2}; }
};

int64_t count_samples() {
  accel::Accelerator accelerator;
  accel::DataLoader loader(Squares(100), {.batch_size = 8, .shuffle = true, .num_workers = 2});
  auto batches = accelerator.prepare(loader);
  int64_t seen = 0;
  for (auto& [x, y] : batches) seen += accelerator.gather_for_metrics(y).size(0);
  return seen;  // 100 on any number of ranks
}

double f1_of_guesses() {
  accel::Accelerator accelerator;
  torch::nn::Linear net(1, 2);
  auto [model, batches] = accelerator.prepare(net, accel::DataLoader(Squares(100), {.batch_size = 8}));
  accel::metrics::FBeta f1({.num_classes = 2, .average = "macro"});
  for (auto& [x, y] : batches) {
    const auto labels = y.squeeze(1).gt(0.25).to(torch::kLong);
    const auto [scores, targets] = accel::metrics::own_rows(accelerator, std::pair(model(x), labels));
    f1.update(scores, targets);
  }
  return accel::metrics::over_ranks(f1).compute();  // of every sample once, and equal on all ranks
}

int64_t count_tokens() {
  accel::Accelerator accelerator;
  accel::DataLoader loader(Sentences(), {.batch_size = 5}, accel::PadCollateWithMask({.padding_values = {0}}));
  int64_t tokens = 0;
  for (auto& [batch, mask] : loader) {
    auto& [ids, label] = batch;  // (5, length of the longest) and (5); the mask is 1 where ids holds data
    if (ids.sizes() == mask.sizes()) tokens += mask.sum().item<int64_t>();
  }
  return tokens;
}

int64_t continue_by_hand() {
  accel::Accelerator accelerator;
  auto make_loader = [] { return accel::DataLoader(Squares(64), {.batch_size = 2}); };
  int64_t seen = 0;
  std::string bytes;
  auto batches = accelerator.prepare(make_loader());
  for (auto& [x, y] : batches) {
    seen += accelerator.gather_for_metrics(y).size(0);
    if (seen < 10) continue;
    bytes = accel::pack(batches.state_dict());  // one state per rank; write it to a file of that rank
    break;
  }

  auto continued = accelerator.prepare(make_loader());  // in a new process
  continued.load_state_dict(accel::unpack<accel::Value>(bytes));
  for (auto& [x, y] : continued) seen += accelerator.gather_for_metrics(y).size(0);  // starts at the next batch
  return seen;                                                                       // 64: every sample once
}

double train_with_uneven_inputs() {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  auto [model, optimizer, batches] = accelerator.prepare(net, sgd, accel::DataLoader(Squares(50), {.batch_size = 4}));
  accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] {
    for (auto& [x, y] : batches) {
      accelerator.backward((model(x) - y).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
  });
  return net->weight.item<double>();  // equal on every rank
}

double train_until_good() {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.5);
  auto [model, optimizer, batches] =
      accelerator.prepare(net, sgd, accel::DataLoader(Squares(400), {.batch_size = 4, .shuffle = true}));
  double last = 1;
  for (auto& [x, y] : batches) {
    auto loss = (model(x) - y).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item<double>();
    if (last < 1e-3) accelerator.set_trigger();  // on any rank
    if (accelerator.check_trigger()) break;      // the same answer on every rank
  }
  return accelerator.reduce(torch::tensor(last), "mean").item<double>();
}

double train_with_local_sgd() {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  auto [model, optimizer, batches] = accelerator.prepare(net, sgd, accel::DataLoader(Squares(200), {.batch_size = 4}));
  accel::LocalSGD local_sgd(accelerator, model, {.local_sgd_steps = 8});
  for (auto& [x, y] : batches) {
    accelerator.backward((model(x) - y).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    local_sgd.step();
  }
  local_sgd.finish();
  return net->weight.item<double>();  // equal on every rank
}

int64_t find_batch_size() {
  const auto batch_size = accel::find_executable_batch_size(
      [](int64_t size) {
        if (size > 70) throw std::bad_alloc();  // stands for a training step that runs out of memory
        return size;
      },
      {.starting_batch_size = 128});
  return batch_size;  // 65: each attempt is nine tenths of the one before
}

std::size_t share_prompts() {
  accel::Accelerator accelerator;
  const std::vector<std::string> prompts{"one", "two", "three", "four", "five"};
  std::vector<std::string> answers;
  for (const auto& prompt : accelerator.split_between_processes(prompts)) answers.push_back(prompt + "!");
  return accel::gather_object(answers).size();  // 5, in the order of the prompts
}

double watch_a_run(const std::string& folder) {
  accel::Accelerator accelerator({.project_dir = folder, .log_with = {std::string("jsonl"), std::string("csv")}});
  accelerator.init_trackers("squares", accel::Value::Dict{{"lr", 0.1}});
  const auto logger = accel::logging::get_logger("train");
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  auto [model, optimizer, batches] = accelerator.prepare(net, sgd, accel::DataLoader(Squares(40), {.batch_size = 4}));
  int64_t step = 0;
  double last = 0;
  for (auto& [x, y] : accel::progress(batches, {.desc = "epoch 1"})) {
    auto loss = (model(x) - y).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    last = loss.item<double>();
    accelerator.log({{"loss", last}}, step++);
    if (!std::isfinite(last)) logger.warning("step {} has no finite loss", step);  // above the progress bar
  }
  accelerator.end_training();
  return last;
}

bool save_and_load_weights(const std::string& own_folder) {
  accel::Accelerator accelerator;
  std::vector<std::string> folder{own_folder};
  accel::broadcast_object_list(folder);  // every rank uses rank 0's folder
  torch::nn::Linear net(3, 1);
  auto model = accelerator.prepare(net);
  accelerator.save_model(model, folder[0], {.max_shard_size = "5GB"});

  torch::nn::Linear other(3, 1);
  accel::load_checkpoint_in_model(*other, folder[0]);
  const bool is_equal = torch::equal(other->weight, model.parameters().front());
  accelerator.wait_for_everyone();
  return is_equal;
}

bool change_sharded_weights() {
  accel::FullyShardedDataParallelPlugin fsdp;
  fsdp.sharding_strategy = "FULL_SHARD";
  accel::Accelerator accelerator({.fsdp_plugin = fsdp});
  torch::nn::Linear net(3, 1);
  auto model = accelerator.prepare(net);
  {
    auto full = accelerator.gathered_parameters(model, /*modifier_rank=*/0);  // full tensors while it lives
    const torch::NoGradGuard no_grad;
    if (accelerator.is_main_process()) net->weight.fill_(3);
  }
  auto full = accelerator.gathered_parameters(model);
  return torch::equal(net->weight, torch::full({1, 3}, 3.0));
}

double train_with_deepspeed_stage_2() {
  accel::DeepSpeedPlugin zero;
  zero.zero_stage = 2;
  accel::Accelerator accelerator({.deepspeed_plugin = zero});
  accel::set_seed(42);
  torch::nn::Linear net(1, 1);
  accel::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.1));
  auto [model, optimizer, batches] = accelerator.prepare(net, adamw, accel::DataLoader(Squares(64), {.batch_size = 2}));
  double last = 0;
  for (auto& [x, y] : batches) {
    auto loss = (model(x) - y).square().mean();
    accelerator.backward(loss);  // steps the optimizer, as DeepSpeed's engine does
    optimizer.step();            // does nothing; kept so that the loop also runs without the plugin
    optimizer.zero_grad();
    last = loss.item<double>();
  }
  return last;
}

double mean_of_shared_images() {
  // One copy per process, however many ranks it simulates.
  const auto images = accel::shared<at::Tensor>("guide/images", [] { return torch::ones({1000, 28, 28}); });
  return images->mean().item<double>();
}

double sum_over_ranks() {
  accel::Accelerator accelerator;
  const auto& world = accelerator.context().world;
  auto value = torch::tensor(double(accelerator.process_index()), torch::kDouble);
  world.all_reduce(value, accel::ReduceOp::kSum).wait();
  return value.item<double>();
}

int train(int, char**) {
  accel::Accelerator accelerator;
  const int64_t ranks = accelerator.num_processes();
  const auto folder = fs::temp_directory_path() /
                      ("accel_guide_" + std::to_string(getpid()) + "_" + std::to_string(accelerator.process_index()));
  fs::create_directories(folder / "runs");
  const double f1 = f1_of_guesses();
  const bool data_is_right = count_samples() == 100 && f1 >= 0 && f1 <= 1 &&
                             count_tokens() == 2 * (1 + 2 + 3 + 4) + 1 + 2 && continue_by_hand() == 64 &&
                             share_prompts() == 5 && find_batch_size() == 65 && mean_of_shared_images() == 1;
  const double uneven = train_with_uneven_inputs(), good = train_until_good(), local = train_with_local_sgd();
  const double watched = watch_a_run((folder / "runs").string());
  const bool weights_are_right = save_and_load_weights((folder / "weights").string()) && change_sharded_weights();
  const double zero = train_with_deepspeed_stage_2(), sum = sum_over_ranks();
  fs::remove_all(folder);
  accelerator.print("on", ranks, "ranks:", uneven, good, local, zero, sum);
  const bool is_finite = std::isfinite(uneven + good + local + watched + zero);
  return data_is_right && weights_are_right && is_finite && sum == double(ranks * (ranks - 1) / 2) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
