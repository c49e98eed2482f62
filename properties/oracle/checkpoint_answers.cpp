// Exchanges complete checkpoints with Accelerate: the training of states.py, in C++. One side starts and saves, the
// other loads and continues.

#include <accel/accel.hpp>
#include <accel/optim.hpp>

#include "properties/oracle/answers.hpp"
#include "reference/files/sha256.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

struct Counter {
  std::int64_t steps = 0;
  [[nodiscard]] Value state_dict() const { return Value::Dict{{"steps", steps}}; }
  void load_state_dict(const Value& state) { steps = state.at("steps").as<std::int64_t>(); }
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, std::vector<at::Tensor> parameters) {
  if (name == "sgd")
    return std::make_unique<optim::SGD>(std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9));
  if (name == "adam") return std::make_unique<optim::Adam>(std::move(parameters), torch::optim::AdamOptions(0.01));
  return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(0.01));
}

std::unique_ptr<LRScheduler> make_schedule(const std::string& name, torch::optim::Optimizer& optimizer) {
  if (name == "step") return std::make_unique<StepLR>(optimizer, 2, 0.5);
  if (name == "lambda")
    return std::make_unique<LambdaLR>(optimizer, [](std::int64_t step) { return 1.0 / static_cast<double>(step + 1); });
  return nullptr;
}

// FSDP as in sharding.py; empty for DDP.
std::optional<FullyShardedDataParallelPlugin> plugin_of(const Json& request) {
  if (!request.contains("plugin")) return std::nullopt;
  const auto& given = request["plugin"];
  FullyShardedDataParallelPlugin plugin{.fsdp_version = given["fsdp_version"].get<int>(),
                                        .wrap_modules = given["wrap_modules"].get<std::vector<std::string>>(),
                                        .state_dict_type = given["state_dict_type"].get<std::string>()};
  if (given.contains("use_orig_params")) plugin.use_orig_params = given["use_orig_params"].get<bool>();
  return plugin;
}

}  // namespace

OrderedJson checkpoint_answer(RankContext& rank, const std::string& line) {
  const auto request = Json::parse(line);
  Accelerator accelerator({.mixed_precision = request["precision"].get<std::string>(),
                           .gradient_accumulation_steps = request["accumulation"],
                           .fsdp_plugin = plugin_of(request)},
                          rank);
  // After a load the seed must not matter: all random state comes from the checkpoint.
  set_seed(request["seed"].get<std::uint64_t>() + (request["load"].is_null() ? 0 : 1));
  torch::nn::Sequential net;  // one statement per module, because the order of arguments is unspecified
  net->push_back(torch::nn::Linear(6, 8));
  net->push_back(torch::nn::Dropout(0.25));
  net->push_back(torch::nn::BatchNorm1d(8));
  net->push_back(torch::nn::Linear(8, 3));
  const auto plain = make_optimizer(request["optimizer"], net->parameters());
  const auto plain_schedule = make_schedule(request["schedule"], *plain);
  auto [model, optimizer] = accelerator.prepare(net, *plain);
  std::optional<AcceleratedScheduler> schedule;
  if (plain_schedule) schedule = accelerator.prepare(*plain_schedule);
  Counter counter;
  accelerator.register_for_checkpointing(counter);
  if (!request["load"].is_null()) accelerator.load_state(request["load"]);
  OrderedJson losses = OrderedJson::array();
  for (int step = 0; step < request["steps"].get<int>(); ++step) {
    // Inputs follow from the counter, which the checkpoint restores, so no data has to be exchanged.
    const auto index = counter.steps * rank.world_size + rank.rank;
    const auto inputs = torch::sin(torch::arange(12, torch::kFloat).view({2, 6}) * static_cast<double>(index + 1));
    auto window = accelerator.accumulate(model);
    const auto loss = torch::nn::functional::cross_entropy(model(inputs), torch::tensor({index % 3, (index + 1) % 3}));
    accelerator.backward(loss);
    optimizer.step();
    if (schedule) schedule->step();
    optimizer.zero_grad();
    ++counter.steps;
    losses.push_back(fmt::format("{:a}", loss.item<double>()));
  }
  if (!request["save"].is_null()) accelerator.save_state(request["save"], {.safe_serialization = request["safe"]});
  const auto complete = accelerator.gathered_parameters(model);
  Sha256 hash;
  for (const auto& parameter : net->parameters()) {
    const auto values = parameter.detach().contiguous();
    hash.update(values.const_data_ptr(), values.nbytes());
  }
  return {{"losses", losses}, {"lr", optimizer.lr()}, {"parameters", hash.hex()}};
}

}  // namespace accel::testing
