#include "sim/programs/train_experiment.hpp"

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/sgd.h>

#include <ATen/ops/linear.h>

#include <chrono>
#include <cmath>

#include <fmt/format.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/core/sha256.hpp"
#include "reference/optim/fused_adam.hpp"
#include "reference/state/rng_sync.hpp"
#include "sim/programs/progress.hpp"

namespace accel::programs {
namespace {

namespace nn = torch::nn;

// Python's Linear calls at::linear; LibTorch's own calls addmm with a transposed weight, which autocast casts at another
// place, so that gradients arrive, and buckets are filled, in another order than in Python.
struct LinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return at::linear(input, weight, bias); }
};
TORCH_MODULE(Linear);

// Statement by statement: modules draw their weights when they are made, and C++ does not say in which order the
// arguments of one call are.
nn::Sequential build_model(const ModelConfig& config) {
  nn::Sequential model;
  if (config.name == "mlp") {
    model->push_back(nn::Flatten());
    model->push_back(Linear(784, config.hidden));
    model->push_back(nn::ReLU());
    model->push_back(nn::Dropout(config.dropout));
    model->push_back(Linear(config.hidden, 10));
    return model;
  }
  model->push_back(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)));
  model->push_back(nn::ReLU());
  model->push_back(nn::MaxPool2d(2));
  model->push_back(nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)));
  model->push_back(nn::ReLU());
  model->push_back(nn::MaxPool2d(2));
  model->push_back(nn::Flatten());
  model->push_back(nn::Dropout(config.dropout));
  model->push_back(Linear(32 * 7 * 7, 10));
  return model;
}

std::unique_ptr<torch::optim::Optimizer> build_optimizer(const OptimizerConfig& config, std::vector<at::Tensor> parameters) {
  if (config.name == "sgd") {
    return std::make_unique<torch::optim::SGD>(std::move(parameters), torch::optim::SGDOptions(config.lr).momentum(config.momentum).weight_decay(config.weight_decay));
  }
  if (config.name == "adam") return std::make_unique<optim::Adam>(std::move(parameters), torch::optim::AdamOptions(config.lr));
  return std::make_unique<optim::AdamW>(std::move(parameters), torch::optim::AdamWOptions(config.lr).weight_decay(config.weight_decay));
}

std::unique_ptr<LRScheduler> build_scheduler(const std::optional<SchedulerConfig>& config, torch::optim::Optimizer& optimizer) {
  if (!config) return nullptr;
  if (config->name == "step") return std::make_unique<StepLR>(optimizer, config->step_size, config->gamma);
  return std::make_unique<LambdaLR>(optimizer, [warmup = config->warmup_steps, total = config->total_steps](int k) {
    if (k < warmup) return static_cast<double>(k + 1) / (warmup + 1);
    return std::max(0.0, static_cast<double>(total - k) / std::max(1, total - warmup));
  });
}

std::string hex_float(double value) { return std::isfinite(value) ? fmt::format("{:a}", value) : fmt::format("{}", value); }

std::string parameters_sha256(const std::vector<at::Tensor>& parameters) {
  Sha256 hash;
  for (const auto& parameter : parameters) {
    const auto bytes = parameter.detach().to(at::kCPU).contiguous();
    hash.update(bytes.const_data_ptr(), bytes.nbytes());
  }
  return hash.hex();
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

RankResult train_experiment(RankContext& context, const Experiment& experiment, const FashionMnist& data, const TrainOptions& options) {
  Accelerator accelerator(experiment.accelerator, context);
  set_seed(experiment.seed);
  auto net = build_model(experiment.model);
  auto plain_optimizer = build_optimizer(experiment.optimizer, net->parameters());
  auto plain_scheduler = build_scheduler(experiment.scheduler, *plain_optimizer);
  DataLoader train_loader(TensorDataset(data.train.images, data.train.labels),
                          {.batch_size = experiment.batch_size, .shuffle = experiment.shuffle, .drop_last = experiment.drop_last});
  DataLoader eval_loader(TensorDataset(data.test.images, data.test.labels), {.batch_size = experiment.eval_batch_size});
  auto [model, optimizer, train_batches, eval_batches] = accelerator.prepare(net, *plain_optimizer, train_loader, eval_loader);
  std::optional<AcceleratedScheduler> scheduler;
  if (plain_scheduler) scheduler = accelerator.prepare(*plain_scheduler);
  const auto parameters = model.parameters();

  RankResult result;
  const auto total_steps = std::min(experiment.max_steps.value_or(experiment.epochs * train_batches.size()), experiment.epochs * train_batches.size());
  Progress progress(accelerator.is_main_process() ? options.progress_descriptor : -1, total_steps);
  const auto done = [&] { return experiment.max_steps && result.steps >= *experiment.max_steps; };

  for (int epoch = 0; epoch < experiment.epochs && !done(); ++epoch) {
    model->train();
    at::Tensor loss;
    const auto started = std::chrono::steady_clock::now();
    for (auto& [images, labels] : train_batches) {
      {
        auto window = accelerator.accumulate(model);
        loss = nn::functional::cross_entropy(model(images), labels);
        accelerator.backward(loss);
        if (accelerator.sync_gradients() && experiment.clip_grad_norm) accelerator.clip_grad_norm_(parameters, *experiment.clip_grad_norm);
        optimizer.step();
        if (scheduler) scheduler->step();
        optimizer.zero_grad();
      }
      if (options.trace) {
        result.trace.push_back(fmt::format(R"({{"rank":{},"epoch":{},"step":{},"loss":"{}","samples":{},"sync_gradients":{},"lr":{}}})",
                                           context.rank, epoch, result.steps, hex_float(loss.item<double>()), labels.size(0),
                                           accelerator.sync_gradients(), optimizer.lr()));
      }
      if (options.keeps_losses) result.losses.push_back(loss.item<double>());
      ++result.steps;
      result.samples += labels.size(0);
      if (progress.is_due() || result.steps == total_steps) progress.show(result.steps, result.steps * train_batches.total_batch_size(), loss.item<double>());
      if (done()) break;
    }
    if (loss.defined()) result.loss = loss.item<double>();
    result.seconds += seconds_since(started);

    model->eval();
    const c10::NoGradGuard no_grad;
    result.eval_correct = result.eval_samples = 0;
    for (auto& [images, labels] : eval_batches) {
      const auto [predictions, targets] = accelerator.gather_for_metrics(std::tuple(model(images).argmax(-1), labels));
      result.eval_correct += (predictions == targets).sum().item<std::int64_t>();
      result.eval_samples += targets.size(0);
    }
    if (options.trace) {
      result.trace.push_back(fmt::format(R"({{"rank":{},"epoch":{},"eval_correct":{},"eval_samples":{}}})", context.rank, epoch, result.eval_correct, result.eval_samples));
    }
  }
  if (options.trace) {
    result.trace.push_back(fmt::format(R"({{"rank":{},"parameters_sha256":"{}"}})", context.rank, parameters_sha256(accelerator.unwrap_model(model)->parameters())));
  }
  return result;
}

}  // namespace accel::programs
