// The built-in tasks: each pairs a dataset with the models that fit it. `make_model` captures values only, because it
// runs on every rank's thread.
#include "sim/programs/experiments/task.hpp"

#include <ATen/ops/cross_entropy_loss.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/data/dataset.hpp"
#include "reference/models/gpt.hpp"
#include "reference/models/image_models.hpp"
#include "reference/models/resnet.hpp"
#include "sim/programs/experiments/small_images.hpp"
#include "sim/programs/experiments/text_blocks.hpp"

namespace accel::programs {
namespace {

// Datasets share the tensors of `data`, so that N ranks hold one copy of the images.
Task fashion_mnist(const Experiment& experiment) {
  const auto data = load_fashion_mnist(experiment.data_dir, experiment.limit, experiment.eval_limit);
  return {TaskDataset(TensorDataset(data->train.images, data->train.labels)),
          TaskDataset(TensorDataset(data->test.images, data->test.labels)),
          [config = experiment.model](const DeviceMesh&) {
            return config.name == "mlp" ? models::mlp({.hidden = config.hidden, .dropout = config.dropout})
                                        : models::cnn({.dropout = config.dropout});
          }};
}

Task cifar_like(const Experiment& experiment) {
  const auto data = load_small_images(experiment.data_dir, experiment.limit, experiment.eval_limit);
  return {TaskDataset(data->train), TaskDataset(data->test),
          [config = experiment.model,
           num_classes = data->num_classes](const DeviceMesh&) -> std::shared_ptr<models::Model> {
            if (config.name == "resnet18")
              return models::cifar_resnet18(
                  {.width = config.width, .num_classes = num_classes, .sync_batchnorm = config.sync_batchnorm});
            const models::ResNetOptions options{.width = config.width,
                                                .num_classes = num_classes,
                                                .sync_batchnorm = config.sync_batchnorm,
                                                .small_images = config.small_images};
            return config.name == "torchvision_resnet18" ? models::resnet18(options) : models::resnet50(options);
          }};
}

// The first 90 % of the text are for training, the rest for evaluation. A block of n bytes needs n + 1, because the
// target of each byte is the next one.
Task char_gpt(const Experiment& experiment) {
  const auto text = load_text(experiment.data_file);
  const auto end = static_cast<std::int64_t>(text->size()), middle = end * 9 / 10;
  const auto block_size = experiment.model.gpt.block_size;
  const TextBlocks train(text, {.begin = 0, .end = middle}, block_size),
      eval(text, {.begin = middle, .end = end}, block_size);
  check_config(
      train.size() > 0 && eval.size() > 0,
      "{}: {} bytes; expected at least {}, so that its last tenth holds a block of {} bytes and one more; use a longer "
      "text or a smaller block_size",
      experiment.data_file, end, 10 * block_size + 1, block_size);
  return {TaskDataset(train).first(experiment.limit), TaskDataset(eval).first(experiment.eval_limit),
          [options = experiment.model.gpt](const DeviceMesh& mesh) { return models::gpt(options, mesh); }};
}

}  // namespace

TaskDataset TaskDataset::first(std::optional<std::int64_t> limit) const {
  auto part = *this;
  part.size_ = std::min(size_, limit.value_or(size_));
  return part;
}

Task load_task(const Experiment& experiment) {
  if (experiment.task == "char_gpt") return char_gpt(experiment);
  return experiment.task == "cifar_like" ? cifar_like(experiment) : fashion_mnist(experiment);
}

// Language models have logits per position and image models per sample; flattening makes both a list of
// classifications.
at::Tensor task_loss(const at::Tensor& logits, const at::Tensor& targets) {
  return at::cross_entropy_loss(logits.flatten(0, -2), targets.flatten());
}

}  // namespace accel::programs
