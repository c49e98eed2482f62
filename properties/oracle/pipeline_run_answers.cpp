// Answers the requests of pipeline_runs.py: trainings of a pipeline.
#include <ATen/ATen.h>
#include <torch/nn/module.h>
#include <torch/optim/sgd.h>

#include "properties/oracle/answers.hpp"
#include "reference/accelerator/accelerator.hpp"
#include "reference/files/sha256.hpp"
#include "reference/pipeline/pipeline_model.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::testing {
namespace {

constexpr int kSteps = 3;

class Stage : public torch::nn::Module {
 public:
  Stage(std::int64_t width, at::Generator& generator)
      : first_(register_parameter("first", at::randn({width, width}, generator))),
        bias_(register_parameter("bias", at::randn({width}, generator))),
        second_(register_parameter("second", at::randn({width, width}, generator))) {}
  at::Tensor forward(const at::Tensor& x) { return x + at::linear(at::tanh(at::linear(x, first_, bias_)), second_); }

 private:
  at::Tensor first_, bias_, second_;
};

}  // namespace

OrderedJson pipeline_run_answer(RankContext& rank, const std::string& line) {
  const auto request = Json::parse(line);
  const int count = request["micro_batches"], stages_per_rank = request["stages_per_rank"];
  const std::int64_t width = request["width"], rows = count * request["rows"].get<std::int64_t>();
  auto generator = make_generator(request["seed"].get<std::uint64_t>());
  std::vector<PipelineLayer> layers;
  for (int stage = 0; stage < rank.world_size * stages_per_rank; ++stage)
    layers.push_back(pipeline_layer(std::to_string(stage), std::make_shared<Stage>(width, generator)));
  Accelerator accelerator({.parallelism_config = ParallelismConfig{.pp_size = rank.world_size}}, rank);
  auto stages =
      pipeline_model(std::move(layers), accelerator.mesh(),
                     {.schedule = request["schedule"], .micro_batches = count, .stages_per_rank = stages_per_rank});
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  Json losses = Json::array();
  for (int step = 0; step < kSteps; ++step) {
    const auto inputs = at::randn({rows, width}, generator), targets = at::randn({rows, width}, generator);
    const auto loss = accelerator.train_pipeline(
        model, {.inputs = {inputs}, .targets = {targets}},
        [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); });
    losses.push_back(loss.item<double>());
    optimizer.step();
    optimizer.zero_grad();
  }
  OrderedJson hashes = OrderedJson::object(), values = OrderedJson::object();
  for (const auto& item : stages->named_parameters()) {
    Sha256 hash;
    hash.update(item.value().const_data_ptr(), item.value().nbytes());
    hashes[item.key()] = hash.hex();
    const auto flat = item.value().detach().flatten();
    for (std::int64_t index = 0; index < flat.numel(); ++index)
      values[item.key()].push_back(flat[index].item<double>());
  }
  return {{"losses", losses}, {"parameters", hashes}, {"values", values}};
}

}  // namespace accel::testing
