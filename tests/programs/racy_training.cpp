// A training whose ranks share a static variable, as programs with global state do. The rank that arrives first in
// step 3 computes something else, so the result depends on the schedule. Exploring must find this.
#include <accel/accel.hpp>
#include <atomic>

#include "tests/support/torch.hpp"

namespace {

constexpr int kRacyStep = 3;

int train(int argc, char** argv) {
  static std::atomic<int> num_arrived{0}, first_rank{0};
  const std::string mode = argc > 1 ? argv[1] : "prints";
  accel::Accelerator accelerator;
  torch::manual_seed(1);
  torch::nn::Linear net(2, 1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*lr=*/0.1));
  for (int step = 0; step < 5; ++step) {
    accelerator.wait_for_everyone();
    // In all other steps the place is the rank itself, so the losses are deterministic.
    const int place = step == kRacyStep ? num_arrived++ : accelerator.process_index();
    const auto loss =
        model(at::full({1, 2}, (mode == "noise" ? accelerator.process_index() : place) + 1.0)).square().mean();
    accelerator.backward(loss);
    if (mode == "noise" && place == 0) first_rank = accelerator.process_index();
    accelerator.wait_for_everyone();
    if (mode == "noise" && step == kRacyStep) net->weight.mutable_grad().add_(first_rank.load());
    optimizer.step();
    optimizer.zero_grad();
  }
  if (mode != "silent") accelerator.print("weight", net->weight.sum().item<double>());
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
