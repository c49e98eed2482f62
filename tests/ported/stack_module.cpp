// Has the form of pytorch/examples' cpp/mnist: a network that is no shared pointer but a local variable, a dataset
// of torch::data with a transform, and separate training and test functions.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <cstdio>

#include "tests/ported/programs.hpp"

namespace accel::ported {
namespace stack_module {
namespace {

constexpr std::int64_t kSize = 12, kClasses = 4;

// An image of stripes; the label is their direction.
class Stripes : public torch::data::datasets::Dataset<Stripes> {
 public:
  Stripes(std::int64_t count, std::int64_t seed) : count_(count), seed_(seed) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto number = static_cast<std::int64_t>(index) + seed_, label = number % kClasses;
    const auto line = torch::arange(kSize).to(torch::kFloat);
    const auto rows = line.view({-1, 1}).expand({kSize, kSize}), columns = line.expand({kSize, kSize});
    const auto slope = label == 0 ? rows : label == 1 ? columns : label == 2 ? rows + columns : rows - columns;
    const auto image = torch::sin(slope * 0.9 + static_cast<double>(number * 7 % 13)) +
                       torch::sin(rows * columns + static_cast<double>(number)) * 0.3;
    return {image.unsqueeze(0), torch::tensor(label)};
  }
  [[nodiscard]] torch::optional<std::size_t> size() const override { return static_cast<std::size_t>(count_); }

 private:
  std::int64_t count_, seed_;
};

// As in the example of PyTorch: derived from Module, with layers as members, and no holder.
struct Net : torch::nn::Module {
  Net()
      : conv1(torch::nn::Conv2dOptions(1, 6, 3)),
        conv2(torch::nn::Conv2dOptions(6, 8, 3)),
        fc1(8 * 3 * 3, 16),
        fc2(16, kClasses) {
    register_module("conv1", conv1);
    register_module("conv2", conv2);
    register_module("conv2_drop", conv2_drop);
    register_module("fc1", fc1);
    register_module("fc2", fc2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(torch::max_pool2d(conv1->forward(x), 2));
    x = torch::relu(conv2_drop->forward(conv2->forward(x)));
    x = torch::relu(fc1->forward(x.view({-1, 8 * 3 * 3})));
    x = torch::dropout(x, /*p=*/0.2, /*train=*/is_training());
    return torch::log_softmax(fc2->forward(x), /*dim=*/1);
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::Dropout2d conv2_drop;
  torch::nn::Linear fc1, fc2;
};

// As a user of LibTorch would write it for one process.
int plain(const Arguments& arguments) {
  torch::manual_seed(1);
  Net model;
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  auto train_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Stripes(203, 0).map(torch::data::transforms::Stack<>()), 16);
  auto test_loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Stripes(61, 1000).map(torch::data::transforms::Stack<>()), 16);
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    model.train();
    double last = 0;
    for (auto& batch : *train_loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model.forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      last = loss.item<double>();
    }
    torch::NoGradGuard no_grad;
    model.eval();
    std::int64_t correct = 0, seen = 0;
    for (auto& batch : *test_loader) {
      const auto guess = model.forward(batch.data).argmax(1);
      correct += guess.eq(batch.target).sum().item<std::int64_t>();
      seen += guess.size(0);
    }
    std::printf("epoch %d loss %.9g correct %d of %d\n", epoch, last, static_cast<int>(correct),
                static_cast<int>(seen));
  }
  return 0;
}

// The same loop with accel. The lengths do not divide by the batch size or the ranks.
int train(const Arguments& arguments) {
  accel::Accelerator accelerator;
  torch::manual_seed(1);
  Net net;
  torch::optim::SGD sgd(net.parameters(), torch::optim::SGDOptions(0.05).momentum(0.5));
  auto [model, optimizer, train_loader, test_loader] =
      accelerator.prepare(net, sgd,
                          accel::DataLoader(Stripes(203, 0).map(torch::data::transforms::Stack<>()),
                                            {.batch_size = 16, .generator = accel::make_generator(0)}),
                          accel::DataLoader(Stripes(61, 1000).map(torch::data::transforms::Stack<>()),
                                            {.batch_size = 16, .generator = accel::make_generator(0)}));
  for (int epoch = 0; epoch < arguments.num_epochs; ++epoch) {
    model.train();
    double last = 0;
    for (auto& [data, target] : *train_loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model.forward(data), target);
      accelerator.backward(loss);
      optimizer.step();
      last = accelerator.reduce(loss.detach(), "mean").item<double>();
    }
    torch::NoGradGuard no_grad;
    model.eval();
    std::int64_t correct = 0, seen = 0;
    for (auto& [data, target] : *test_loader) {
      const auto [guess, truth] = accelerator.gather_for_metrics(std::pair(model.forward(data).argmax(1), target));
      correct += guess.eq(truth).sum().item<std::int64_t>();
      seen += guess.size(0);
    }
    accelerator.print(fmt::format("epoch {} loss {:.9g} correct {} of {}", epoch, last, correct, seen));
    if (seen != 61) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace stack_module

const Program kStackModule{"stack_module", stack_module::plain, stack_module::train};

}  // namespace accel::ported
