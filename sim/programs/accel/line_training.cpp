#include "sim/programs/accel/line_training.hpp"

#include <ATen/ops/arange.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/sgd.h>

#include "reference/accelerator/accelerator.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel::programs {

at::Tensor points(std::int64_t count) { return (at::arange(count) % 97).to(at::kFloat).reshape({-1, 1}) / 97; }

torch::nn::Linear make_line() {
  set_seed(42);
  return torch::nn::Linear(1, 1);
}

// Trains the same model on one process: every optimizer step sees the micro-batches of all data-parallel ranks at once.
// Ranks that divide a layer among them, under tensor parallelism for example, see the same micro-batch.
std::vector<at::Tensor> train_alone(const Accelerator& accelerator, const at::Tensor& x, int accumulation) {
  auto line = make_line();
  line->to(accelerator.device());
  torch::optim::SGD sgd(line->parameters(), kRate);
  const auto& plugin = accelerator.megatron_lm_plugin();
  const double norm_max = plugin ? plugin->gradient_clipping.value_or(0) : 0;
  for (const auto& batch : x.split(kBatch * accelerator.data_parallel_size() * accumulation)) {
    const auto input = batch.to(accelerator.device());
    (line(input) - (2 * input + 3)).square().mean().backward();
    if (norm_max > 0) torch::nn::utils::clip_grad_norm_(line->parameters(), norm_max);
    sgd.step();
    sgd.zero_grad();
  }
  return line->parameters();
}

}  // namespace accel::programs
