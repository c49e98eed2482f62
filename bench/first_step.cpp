// Runs one optimizer step of a small model and prints the monotonic clock after it, in nanoseconds, on rank 0.
// launch_bench starts it and reads the same clock before the start, so the difference covers the complete launch.
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accel.hpp>
#include <chrono>
#include <string_view>

namespace {

int train(int /*argc*/, char** /*argv*/) {
  accel::Accelerator accelerator;
  accel::set_seed(1);
  torch::nn::Linear net(784, 10);
  torch::optim::SGD sgd(net->parameters(), /*lr=*/0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  accelerator.backward(model(at::ones({32, 784})).square().mean());
  optimizer.step();
  accelerator.wait_for_everyone();
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  accelerator.print(
      fmt::format("{{\"first_step_at\":{}}}", std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return accel::run(argc, argv, train);
  const bool is_help = std::string_view(argv[1]) == "--help";
  fmt::print(is_help ? stdout : stderr, "Usage: accel launch --num_processes N first_step, without options\n");
  return is_help ? 0 : 2;
}
