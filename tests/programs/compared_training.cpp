// A training that diverges on real ranks only: `compared_training KIND`. On rank 1, in micro-batch 2, a real rank
// computes something else than the simulated one. KIND says what: see `deviates_in`.
#include <accel/accel.hpp>
#include <stdexcept>
#include <string>

#include "reference/config/environment.hpp"
#include "tests/support/torch.hpp"

namespace {

constexpr int kSteps = 4, kStep = 2, kRank = 1;

// Shared by the modules of one rank, which runs on one thread.
struct Deviation {
  std::string kind;
  bool is_now = false;
};

at::Tensor with_noise(const at::Tensor& tensor, bool is_noisy) { return is_noisy ? tensor + 0.125 : tensor; }

struct MaybeNoisyImpl : torch::nn::Module {
  explicit MaybeNoisyImpl(const Deviation& own) : deviation(&own) {}
  at::Tensor forward(const at::Tensor& x) {  // not const: Sequential requires it
    return with_noise(x, deviation->is_now && deviation->kind == "output");
  }
  const Deviation* deviation;
};
TORCH_MODULE(MaybeNoisy);

struct NetImpl : torch::nn::Module {
  explicit NetImpl(const Deviation& own) : deviation(&own) {
    first = register_module("first", torch::nn::Linear(6, 8));
    body = register_module("body",
                           torch::nn::Sequential(torch::nn::Linear(8, 8), MaybeNoisy(own), torch::nn::Linear(8, 8)));
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& x) {
    auto hidden = accel::call(first, x);
    if (deviation->is_now && deviation->kind == "gradient")
      hidden.register_hook([](const at::Tensor& gradient) { return gradient * 2; });
    return accel::call(last, body->forward(hidden));
  }
  torch::nn::Linear first = nullptr, last = nullptr;
  torch::nn::Sequential body = nullptr;
  const Deviation* deviation;
};
TORCH_MODULE(Net);

int train(int argc, char** argv) {
  Deviation deviation{argc > 1 ? argv[1] : "none"};
  const auto deviates_in = [&](const char* kind) { return deviation.is_now && deviation.kind == kind; };
  accel::Accelerator accelerator;
  if (const int count = accel::current_rank().restart_count; count > 0) accelerator.print("started again:", count);
  accel::set_seed(7);
  const bool is_real = accel::environment("RANK").has_value();  // set by the launcher of real ranks
  if (is_real && deviation.kind == "throw") throw std::runtime_error("the disk of the real ranks is full");
  // A step that only some ranks make would hang, so that all ranks stop early.
  const int num_steps = is_real && deviation.kind == "length" ? kSteps - 1 : kSteps;
  auto net = std::make_shared<NetImpl>(deviation);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), /*lr=*/0.1));
  for (int step = 0; step < num_steps; ++step) {
    deviation.is_now = is_real && step == kStep && accelerator.process_index() == kRank;
    const auto input = with_noise(torch::rand({4, 6}), deviates_in("input"));
    const auto loss = with_noise(model(input).square().mean(), deviates_in("loss"));
    accelerator.backward(loss);
    if (deviates_in("parameter")) net->last->bias.mutable_grad().add_(1);
    if (deviates_in("generator")) torch::rand({1});
    optimizer.step();
    optimizer.zero_grad();
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
