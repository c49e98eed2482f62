// Has the form of a variational autoencoder: its forward returns a struct, and the model is sharded.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {

// What forward returns; tree_members below lets accel find its tensors.
struct VaeOutput {
  at::Tensor reconstruction, mean, log_variance;
};

}  // namespace accel::ported

template <>
inline constexpr auto accel::tree_members<accel::ported::VaeOutput> =
    std::tuple(&accel::ported::VaeOutput::reconstruction, &accel::ported::VaeOutput::mean,
               &accel::ported::VaeOutput::log_variance);

namespace accel::ported {
namespace struct_output {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t kFeatures = 6, kHidden = 16, kLatent = 3;

// A small autoencoder with random latent values, which are drawn on each rank.
struct VaeImpl : nn::Module {
  VaeImpl() {
    encode = register_module("encode", nn::Linear(kFeatures, kHidden));
    mean = register_module("mean", nn::Linear(kHidden, kLatent));
    log_variance = register_module("log_variance", nn::Linear(kHidden, kLatent));
    decode = register_module("decode",
                             nn::Sequential(nn::Linear(kLatent, kHidden), nn::ReLU(), nn::Linear(kHidden, kFeatures)));
  }
  VaeOutput forward(const at::Tensor& x) {
    const auto hidden = torch::relu(encode(x));
    const auto mu = mean(hidden), log_var = log_variance(hidden);
    const auto latent = is_training() ? mu + (log_var / 2).exp() * torch::randn_like(mu) : mu;
    return {decode->forward(latent), mu, log_var};
  }
  nn::Linear encode{nullptr}, mean{nullptr}, log_variance{nullptr};
  nn::Sequential decode{nullptr};
};
TORCH_MODULE(Vae);

// Sine waves of different frequencies.
at::Tensor samples() {
  const auto angle = torch::arange(90).to(torch::kFloat).view({-1, 1}) * 0.21;
  return torch::sin(angle * torch::arange(1, kFeatures + 1)) * 0.7;
}

// The error of the reconstruction, and how far the latent values are from a normal distribution.
at::Tensor loss_of(const VaeOutput& output, const at::Tensor& x) {
  const auto divergence = -0.5 * (1 + output.log_variance - output.mean.square() - output.log_variance.exp()).mean();
  return torch::mse_loss(output.reconstruction, x) + 0.1 * divergence;
}

// As a user of LibTorch would write it for one process.
int plain(const Arguments& arguments) {
  torch::manual_seed(3);
  Vae model;
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    double last = 0;
    for (const auto& x : samples().split(10)) {
      optimizer.zero_grad();
      auto loss = loss_of(model(x), x);
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
    }
    std::printf("epoch %d loss %.9g\n", epoch, last);
  }
  return 0;
}

// The same loop with accel and FSDP.
int train(const Arguments& arguments) {
  accel::Accelerator accelerator({.fsdp_plugin = accel::FullyShardedDataParallelPlugin{}});
  torch::manual_seed(3);
  Vae net;
  torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
  auto [model, optimizer, batches] = accelerator.prepare(
      net, adam,
      accel::DataLoader(accel::TensorDataset(samples()), {.batch_size = 10, .generator = accel::make_generator(0)}));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    double last = 0;
    for (auto& [x] : batches) {
      optimizer->zero_grad();
      auto loss = loss_of(model(x), x);
      accelerator.backward(loss);
      optimizer->step();
      last = accelerator.reduce(loss.detach(), "mean").item<double>();
    }
    accelerator.print(fmt::format("epoch {} loss {:.9g}", epoch, last));
  }
  return 0;
}

}  // namespace
}  // namespace struct_output

const Program kStructOutput{"struct_output", struct_output::plain, struct_output::train};

}  // namespace accel::ported
