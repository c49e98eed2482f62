// Has the form of pytorch/examples' cpp/dcgan: two networks, two optimizers, three backward passes in each step,
// and checkpoints. What it tests: several objects in one prepare(), and passes that reach the networks of both.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>
#include <filesystem>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace gan {
namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr std::int64_t kNoise = 4, kPoints = 96, kBatch = 8;

// With a batch norm, whose buffers the ranks must agree on.
nn::Sequential make_generator() {
  return nn::Sequential(nn::Linear(kNoise, 16), nn::BatchNorm1d(16), nn::ReLU(), nn::Linear(16, 2), nn::Tanh());
}
// Tells real points from generated ones.
nn::Sequential make_discriminator() {
  return nn::Sequential(nn::Linear(2, 16), nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)), nn::Linear(16, 1),
                        nn::Sigmoid());
}
torch::optim::AdamOptions adam_options() { return torch::optim::AdamOptions(2e-3).betas({0.5, 0.999}); }

// Real data that a small network can learn to imitate.
at::Tensor points_on_a_circle() {
  const auto angle = torch::arange(kPoints).to(torch::kFloat) * 0.37;
  return torch::stack({angle.cos(), angle.sin()}, 1) * 0.8;
}

// One step; `backward(loss)` is called for each of its three losses.
template <typename Generator, typename Discriminator, typename GeneratorOptimizer, typename DiscriminatorOptimizer,
          typename Backward>
std::pair<at::Tensor, at::Tensor> step(const at::Tensor& real, Generator& generator, Discriminator& discriminator,
                                       GeneratorOptimizer& generator_optimizer,
                                       DiscriminatorOptimizer& discriminator_optimizer, const Backward& backward) {
  const auto size = real.size(0);
  discriminator_optimizer.zero_grad();
  auto real_loss = F::binary_cross_entropy(discriminator(real), torch::full({size, 1}, 0.9));
  backward(real_loss);
  auto fake = generator(torch::randn({size, kNoise}));
  auto fake_loss = F::binary_cross_entropy(discriminator(fake.detach()), torch::zeros({size, 1}));
  backward(fake_loss);
  discriminator_optimizer.step();

  generator_optimizer.zero_grad();
  auto generator_loss = F::binary_cross_entropy(discriminator(fake), torch::ones({size, 1}));
  backward(generator_loss);
  generator_optimizer.step();
  return {(real_loss + fake_loss).detach(), generator_loss.detach()};
}

// As a user of LibTorch would write it for one process.
int plain(const Arguments& arguments) {
  torch::manual_seed(2);
  auto generator_net = make_generator(), discriminator_net = make_discriminator();
  torch::optim::Adam generator_optimizer(generator_net->parameters(), adam_options()),
      discriminator_optimizer(discriminator_net->parameters(), adam_options());
  const auto generator = [&](const at::Tensor& noise) { return generator_net->forward(noise); };
  const auto discriminator = [&](const at::Tensor& points) { return discriminator_net->forward(points); };
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    for (const auto& real : points_on_a_circle().split(kBatch)) {
      const auto [of_discriminator, of_generator] =
          step(real, generator, discriminator, generator_optimizer, discriminator_optimizer,
               [](at::Tensor& loss) { loss.backward(); });
      std::printf("epoch %d D %.9g G %.9g\n", epoch, of_discriminator.item<double>(), of_generator.item<double>());
    }
  }
  return 0;
}

// The same loop with accel; it continues from a checkpoint if there is one.
int train(const Arguments& arguments) {
  accel::Accelerator accelerator;
  torch::manual_seed(2);
  auto generator_net = make_generator(), discriminator_net = make_discriminator();
  auto [generator, discriminator, generator_optimizer, discriminator_optimizer, batches] = accelerator.prepare(
      generator_net, discriminator_net, torch::optim::Adam(generator_net->parameters(), adam_options()),
      torch::optim::Adam(discriminator_net->parameters(), adam_options()),
      accel::DataLoader(accel::TensorDataset(points_on_a_circle()),
                        {.batch_size = kBatch, .generator = accel::make_generator(0)}));
  if (!arguments.folder.empty() && std::filesystem::exists(arguments.folder + "/state"))
    accelerator.load_state(arguments.folder + "/state");
  for (auto epoch = static_cast<int>(batches.iteration()); epoch < arguments.num_epochs; ++epoch) {
    for (auto& [real] : batches) {
      const auto losses =
          accelerator.reduce(step(real, generator, discriminator, generator_optimizer, discriminator_optimizer,
                                  [&](at::Tensor& loss) { accelerator.backward(loss); }),
                             "mean");
      accelerator.print(
          fmt::format("epoch {} D {:.9g} G {:.9g}", epoch, losses.first.item<double>(), losses.second.item<double>()));
    }
    if (!arguments.folder.empty()) accelerator.save_state(arguments.folder + "/state");
  }
  return 0;
}

}  // namespace
}  // namespace gan

const Program kGan{"gan", gan::plain, gan::train};

}  // namespace accel::ported
