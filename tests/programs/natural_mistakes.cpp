// What must not compile, each with one sentence: see mistakes_test.cpp, which reads what follows "// expected: ".
#include <torch/data/dataloader.h>
#include <torch/data/datasets/tensor.h>
#include <torch/script.h>

#include <accel/accel.hpp>

#include "tests/support/torch.hpp"

namespace {

struct Net : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x; }
};

// A struct without tree_members.
struct PlainSample {
  at::Tensor image;
  std::int64_t label;
};
struct PlainSamples {
  [[nodiscard]] std::int64_t size() const { return 4; }
  [[nodiscard]] PlainSample get(std::int64_t index) const { return {at::zeros({1}), index}; }
};
struct NoSamples {};

auto make_torch_loader() {
  return torch::data::make_data_loader(torch::data::datasets::TensorDataset(at::zeros({4, 1})), 2);
}

}  // namespace

void a_torch_loader(accel::Accelerator& accelerator, torch::nn::Linear& net) {
  auto torch_loader = make_torch_loader();
  auto [model, loader] = accelerator.prepare(net, torch_loader);
  // expected: prepare: a torch::data loader is unsupported; create accel::DataLoader loader(accel::from_torch(dataset),
  // {.batch_size = n}), or wrap the loader by accel::from_torch_loader
  for (auto& batch : *loader) model(batch.front().data);
}

void a_torch_loader_itself(accel::Accelerator& accelerator) {
  auto torch_loader = make_torch_loader();
  // expected: prepare: a torch::data loader is unsupported; create accel::DataLoader
  accelerator.prepare(*torch_loader);
}

void a_torch_dataset(accel::Accelerator& accelerator) {
  // expected: prepare: a torch::data dataset is unsupported; create accel::DataLoader loader(accel::from_torch(dataset)
  accelerator.prepare(torch::data::datasets::TensorDataset(at::zeros({4, 1})));
}

void a_dataset(accel::Accelerator& accelerator) {
  accel::TensorDataset dataset(at::zeros({4, 1}));
  // expected: prepare: a dataset is unsupported; create accel::DataLoader loader(dataset, {.batch_size = n}) and
  // prepare that
  accelerator.prepare(dataset);
}

void a_schedule_of_libtorch(accel::Accelerator& accelerator, torch::optim::SGD& sgd) {
  torch::optim::StepLR step_lr(sgd, 1);
  // expected: prepare: LibTorch's schedules are unsupported, since they also advance when the optimizer skips a step;
  // use accel::StepLR
  auto scheduler = accelerator.prepare(step_lr);
}

void a_temporary_schedule(accel::Accelerator& accelerator, torch::optim::SGD& sgd) {
  // expected: prepare: a temporary schedule is destroyed at the end of this statement; give it a name
  auto [optimizer, scheduler] = accelerator.prepare(sgd, accel::StepLR(sgd, 1));
}

void a_temporary_module(accel::Accelerator& accelerator) {
  // expected: prepare: a temporary module is destroyed at the end of this statement; give it a name, or use
  // std::make_shared<Net>(...)
  auto [model, optimizer] = accelerator.prepare(Net(), torch::optim::SGD({at::zeros({1})}, 0.1));
}

void a_unique_module(accel::Accelerator& accelerator) {
  auto net = std::make_unique<Net>();
  // expected: prepare: a unique_ptr of a module is unsupported, since LibTorch shares modules; use
  // std::make_shared<Net>(...)
  accelerator.prepare(net);
}

void a_plain_pointer(accel::Accelerator& accelerator, torch::optim::Optimizer* optimizer) {
  // expected: prepare: plain pointers are unsupported; pass the object itself (*pointer) or a shared_ptr
  accelerator.prepare(optimizer);
}

void an_any_module(accel::Accelerator& accelerator) {
  torch::nn::AnyModule module(torch::nn::Linear(1, 1));
  // expected: prepare: torch::nn::AnyModule is unsupported, since the type of its forward is unknown; pass the module
  // that it holds
  accelerator.prepare(module);
}

void a_reduced_number(accel::Accelerator& accelerator, const at::Tensor& loss) {
  // expected: reduce: does not support numbers, strings and unknown types; reduce a tensor:
  // accelerator.reduce(loss.detach(), "mean").item<double>()
  const double mean = accelerator.reduce(loss.item<double>(), "mean");
  static_cast<void>(mean);
}

void a_gathered_number(accel::Accelerator& accelerator) {
  // expected: gather: does not support numbers, strings and unknown types; gather a tensor
  const auto all = accelerator.gather(std::pair(at::ones({1}), 3));
  static_cast<void>(all);
}

void a_number_for_metrics(accel::Accelerator& accelerator) {
  // expected: gather_for_metrics: does not support numbers, strings and unknown types; gather a tensor with one row per
  // sample
  accelerator.gather_for_metrics(0.5);
}

void a_broadcast_number(accel::Accelerator& accelerator) {
  int epoch = 3;
  // expected: broadcast: does not support numbers, strings and unknown types; use a tensor
  accelerator.broadcast(epoch);
}

void a_padded_number(accel::Accelerator& accelerator) {
  // expected: pad_across_processes: does not support numbers, strings and unknown types; pass tensors
  accelerator.pad_across_processes(std::vector<int>{1, 2});
}

void a_script_module(accel::Accelerator& accelerator) {
  torch::jit::Module module("net");
  // expected: prepare: TorchScript modules are unsupported, since their forward is interpreted
  accelerator.prepare(module);
}

namespace {

struct Changing : torch::nn::Module {
  at::Tensor forward(at::Tensor& x) { return x = x + 1; }
};
struct WithOutput : torch::nn::Module {
  void forward(const at::Tensor& x, at::Tensor& out) { out = x + 1; }
};

}  // namespace

void a_forward_that_changes_its_argument(accel::Accelerator& accelerator) {
  auto model = accelerator.prepare(std::make_shared<Changing>());
  auto x = at::ones({1});
  // expected: model(...): forward takes an argument by reference (T&); take it by value or by const T&, and return what
  // forward changes
  const auto y = model(x);
  static_cast<void>(y);
}

void a_forward_with_an_output(accel::Accelerator& accelerator) {
  auto model = accelerator.prepare(std::make_shared<WithOutput>());
  at::Tensor out;
  // expected: model(...): forward takes an argument by reference (T&); take it by value or by const T&
  model(at::ones({1}), out);
}

void members_of_a_module(accel::Accelerator& accelerator, torch::nn::Linear& net) {
  auto model = accelerator.prepare(net);
  // expected: model.to: a handle has only the members that prepare changes; those of the module follow ->: model->to(
  model.to(torch::kDouble);
  // expected: model.zero_grad: call optimizer.zero_grad()
  model.zero_grad();
}

void an_optimizer_as_a_base(accel::Accelerator& accelerator, torch::optim::SGD& sgd) {
  auto optimizer = accelerator.prepare(sgd);
  // expected: a prepared optimizer is no torch::optim::Optimizer, whose step would ignore accumulation
  torch::optim::Optimizer& base = optimizer;
  base.step();
}

void a_dataset_of_structs() {
  // expected: DataLoader: samples of this dataset are no tree of tensors, numbers and strings, or size() is missing; a
  // struct becomes a tree by
  accel::DataLoader loader(PlainSamples(), {.batch_size = 2});
}

void no_dataset() {
  // expected: DataLoader: this is no dataset; expected size() and get(index), or reset() and next(), or a range
  accel::DataLoader loader(NoSamples(), {.batch_size = 2});
}
