#include "reference/parallel/backward_pass.hpp"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <iterator>
#include <utility>

#include "reference/core/autograd_node.hpp"

namespace accel {
namespace {

using torch::autograd::variable_list;

// Passes gradients through unchanged, including undefined ones. The callback is queued from inside the pass because the
// engine accepts callbacks only while a backward pass runs.
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

// Shares the backend of the given group, so that sequence numbers and names remain those of that group. Only all-reduce
// is overridden, because c10d's Reducer and the communication hooks call no other collective.
class BlockingProcessGroup : public c10d::ProcessGroup {
 public:
  BlockingProcessGroup(c10d::ProcessGroup& group, c10::DeviceType device, std::shared_ptr<const bool> is_blocking)
      : ProcessGroup(group.getRank(), group.getSize()), is_blocking_(std::move(is_blocking)) {
    setBackend(device, group.getBackendType(), group.getBackend(device));
    setDefaultBackend(group.getBackendType());
  }

  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions& options) override {
    auto work = ProcessGroup::allreduce(tensors, options);
    if (*is_blocking_) work->wait();
    return work;
  }

 private:
  std::shared_ptr<const bool> is_blocking_;
};

}  // namespace

std::vector<at::Tensor> through_sink(const std::vector<at::Tensor>& outputs, std::function<void()> at_end) {
  // One node for all differentiable outputs: the engine then waits for the gradients of all of them, and treats those
  // that never come as undefined.
  variable_list differentiable;
  for (const auto& output : outputs) {
    if (output.grad_fn()) differentiable.push_back(output);
  }
  // E.g. under no_grad: there is no backward pass to intercept.
  if (differentiable.empty()) return outputs;
  const auto sink = make_node<Sink>(torch::autograd::collect_next_edges(differentiable), std::move(at_end));
  std::vector<at::Tensor> results;
  for (const auto& output : outputs) {
    if (!output.grad_fn()) {
      results.push_back(output);
      continue;
    }
    at::Tensor copy;
    {
      const c10::NoGradGuard no_grad;
      // A copy: set_history on the output itself would cut off the history that leads into the module.
      copy = output.clone();
    }
    torch::autograd::set_history(copy, sink);
    results.push_back(std::move(copy));
  }
  return results;
}

Group blocking_group(const Group& group, c10::Device device, std::shared_ptr<const bool> is_blocking) {
  return {group.name(),
          c10::make_intrusive<BlockingProcessGroup>(*group.process_group(), device.type(), std::move(is_blocking))};
}

void deliver_gradients(const std::vector<at::Tensor>& parameters) {
  namespace impl = torch::autograd::impl;
  std::vector<at::Tensor> trained;
  std::ranges::copy_if(parameters, std::back_inserter(trained), [](const auto& own) { return own.requires_grad(); });
  if (trained.empty()) return;
  torch::autograd::edge_list accumulators;
  torch::autograd::variable_list gradients;
  std::vector<std::vector<std::unique_ptr<torch::autograd::FunctionPreHook>>> hooks;  // have seen these gradients
  for (auto& parameter : trained) {
    accumulators.push_back(impl::gradient_edge(parameter));
    gradients.push_back(parameter.grad().defined() ? parameter.grad().detach() : at::Tensor());
    parameter.mutable_grad().reset();
    hooks.push_back(std::exchange(impl::hooks(parameter), {}));
  }
  torch::autograd::Engine::get_default_engine().execute(accumulators, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true, {});
  for (std::size_t index = 0; index < trained.size(); ++index) impl::hooks(trained[index]) = std::move(hooks[index]);
}

}  // namespace accel
