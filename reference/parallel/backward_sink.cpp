#include "reference/parallel/backward_sink.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace accel {
namespace {

using torch::autograd::variable_list;

// Gradients pass as they are, undefined ones too.
class Sink : public torch::autograd::Node {
 public:
  Sink(torch::autograd::edge_list edges, std::function<void()> at_end)
      : Node(std::move(edges)), at_end_(std::move(at_end)) {}
  std::string name() const override { return "DDPSink"; }

 protected:
  variable_list apply(variable_list&& gradients) override {
    if (at_end_) torch::autograd::Engine::get_default_engine().queue_callback(at_end_);
    return std::move(gradients);
  }

 private:
  std::function<void()> at_end_;
};

}  // namespace

std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, std::function<void()> at_end) {
  variable_list differentiable;
  for (const auto& output : outputs) {
    if (output.grad_fn()) differentiable.push_back(output);
  }
  if (differentiable.empty()) return outputs;
  const auto sink = std::shared_ptr<Sink>(
      new Sink(torch::autograd::collect_next_edges(differentiable), std::move(at_end)), torch::autograd::deleteNode);
  std::vector<at::Tensor> results;
  for (const auto& output : outputs) {
    if (!output.grad_fn()) {
      results.push_back(output);
      continue;
    }
    at::Tensor copy;
    {
      const c10::NoGradGuard no_grad;
      copy = output.clone();
    }
    torch::autograd::set_history(copy, sink);
    results.push_back(std::move(copy));
  }
  return results;
}

}  // namespace accel
