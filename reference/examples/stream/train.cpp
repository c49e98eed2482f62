// Trains from a dataset without a length, in batches of a struct. Shows what a stream must provide, and that metrics
// still contain each sample once.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <cmath>
#include <optional>

// A sensor reading, and also a batch of readings. The specialization of tree_members makes the struct a tree.
struct Reading {
  at::Tensor wave, frequency;
};
template <>
inline constexpr auto accel::tree_members<Reading> = std::tuple(&Reading::wave, &Reading::frequency);

// Readings arrive one by one, and their number is unknown. Rank 0 reads them and sends each rank its part.
class Sensor {
 public:
  Sensor(int64_t first, int64_t count) : first_(first), count_(count) {}
  // Starts a pass. Each loop over the loader is one pass.
  void reset() { next_ = 0; }
  std::optional<Reading> next() {
    if (next_ == count_) return std::nullopt;
    const auto number = first_ + next_++;
    const auto frequency = 1 + number % 3;
    return Reading{torch::sin(torch::linspace(0, 2 * M_PI, 16) * double(frequency) + double(number)),
                   torch::tensor(frequency - 1)};
  }

 private:
  int64_t first_, count_, next_ = 0;
};

int train(int, char**) {
  accel::Accelerator accelerator;
  accel::set_seed(42);
  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 3));
  accel::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
  accel::DataLoader heard(Sensor(0, 1500), {.batch_size = 8}), unheard(Sensor(5000, 203), {.batch_size = 8});
  auto [model, optimizer, batches, eval_batches] = accelerator.prepare(net, adam, heard, unheard);

  double error = 0;
  for (auto& batch : batches) {
    auto loss = torch::nn::functional::cross_entropy(model(batch.wave), batch.frequency);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    // Every rank has the loss of its own batch; the mean is what all of them print.
    error = accelerator.reduce(loss, "mean").item<double>();
  }

  model->eval();
  torch::NoGradGuard no_grad;
  int64_t correct = 0, seen = 0;
  for (auto& batch : eval_batches) {
    auto [guess, truth] = accelerator.gather_for_metrics(std::pair(model(batch.wave).argmax(1), batch.frequency));
    correct += (guess == truth).sum().item<int64_t>();
    seen += truth.size(0);
  }
  const double accuracy = double(correct) / double(seen);
  accelerator.print("loss", error, "accuracy", accuracy, "over", seen, "readings");
  return seen == 203 && accuracy > 0.6 ? 0 : 1;  // every reading once, on any number of ranks; guessing gives 0.33
}

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
