// One step of a pipeline whose stages take equally long: equal_stages SCHEDULE STAGES_PER_RANK MICRO_BATCHES. Each
// stage is a chain of small layers, whose time on a GPU is that of starting their kernels.
#include <accel/accel.hpp>
#include <accel/pipeline.hpp>
#include <torch/torch.h>

namespace {

int train(int, char** argv) {
  namespace nn = torch::nn;
  const accel::PipelineOptions options{
      .schedule = argv[1], .micro_batches = std::stoi(argv[3]), .stages_per_rank = std::stoi(argv[2])};
  constexpr int kLayersPerStage = 400, kWidth = 8, kRows = 4;
  const int ranks = accel::PartialState().num_processes();
  accel::Accelerator accelerator({.parallelism_config = accel::ParallelismConfig{.pp_size = ranks}});
  std::vector<accel::PipelineLayer> layers;
  for (int stage = 0; stage < ranks * options.stages_per_rank; ++stage) {
    nn::Sequential chain;
    for (int layer = 0; layer < kLayersPerStage; ++layer)
      chain->push_back(nn::Linear(nn::LinearOptions(kWidth, kWidth).bias(false)));
    layers.push_back(accel::pipeline_layer(std::to_string(stage), chain));
  }
  auto stages = accel::pipeline_model(std::move(layers), accelerator.mesh(), options);
  torch::optim::SGD sgd(stages->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(stages, sgd);
  const auto x = torch::ones({kRows * options.micro_batches, kWidth});
  accelerator.train_pipeline(
      model, {.inputs = {x}, .targets = {x}},
      [](const at::Tensor& output, const at::Tensor& target) { return (output - target).sum(); });
  optimizer.step();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
