#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "reference/core/autograd_node.hpp"
#include "reference/modules/call.hpp"
#include "reference/precision/float8_layers.hpp"
#include "reference/rank_local/random.hpp"

// Activation checkpointing, as torch.utils.checkpoint with use_reentrant=True: forward runs without gradients; backward
// runs it again with the same inputs, random numbers and precision, and then its own backward pass.
namespace accel::detail {
namespace {

using torch::autograd::variable_list;
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// The state besides its inputs that a forward depends on: precision and random number generators. All of it is
// thread-local or per rank, and backward may run on another thread or after other random draws.
class ForwardState {
 public:
  ForwardState() : float8_layers_(Float8Scope::current()), generator_(default_generator().get_state()) {
    if (auto gpus = generator_of_gpu(); gpus.defined()) generator_of_gpu_ = gpus.get_state();
    for (auto& [device, precision] : precisions_)
      precision = {at::autocast::is_autocast_enabled(device), at::autocast::get_autocast_dtype(device)};
    caches_ = at::autocast::is_autocast_cache_enabled();
  }
  void apply() const {
    auto generator = default_generator();
    restore_generator(generator, generator_);
    if (auto gpus = generator_of_gpu(); gpus.defined() && generator_of_gpu_.defined())
      restore_generator(gpus, generator_of_gpu_);
    for (const auto& [device, precision] : precisions_) {
      at::autocast::set_autocast_enabled(device, precision.first);
      at::autocast::set_autocast_dtype(device, precision.second);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }
  [[nodiscard]] const std::shared_ptr<const Float8Layers>& float8_layers() const { return float8_layers_; }

 private:
  std::shared_ptr<const Float8Layers> float8_layers_;
  // The generator of this thread's current GPU; undefined without a GPU.
  static at::Generator generator_of_gpu() {
    const auto& cuda = at::detail::getCUDAHooks();
    return cuda.hasCUDA() && cuda.current_device() >= 0 ? cuda.getDefaultGenerator(cuda.current_device())
                                                        : at::Generator();
  }

  at::Tensor generator_, generator_of_gpu_;
  std::array<std::pair<c10::DeviceType, std::pair<bool, at::ScalarType>>, 2> precisions_ = {
      {{c10::kCPU, {}}, {c10::kCUDA, {}}}};
  bool caches_;
};

class ForwardStateScope {
 public:
  // Captures the current state first (`before_`), so that the recomputation does not advance the generators of
  // training.
  explicit ForwardStateScope(const ForwardState& forward_state) : float8_(forward_state.float8_layers()) {
    at::autocast::increment_nesting();
    forward_state.apply();
  }
  ~ForwardStateScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.apply();
  }
  ForwardStateScope(const ForwardStateScope&) = delete;
  ForwardStateScope& operator=(const ForwardStateScope&) = delete;

 private:
  ForwardState before_;
  Float8Scope float8_;
};

// The node that stands for the module in the outer graph. Source: torch/utils/checkpoint.py, CheckpointFunction
// (use_reentrant).
class Recompute : public torch::autograd::Node {
 public:
  Recompute(torch::autograd::edge_list edges, Forward forward, const std::vector<at::Tensor>& inputs)
      : Node(std::move(edges)), forward_(std::move(forward)) {
    for (const auto& input : inputs) {
      requires_grad_.push_back(input.defined() && input.requires_grad());
      // SavedVariable, not a plain tensor: it detects in-place changes between forward and backward.
      inputs_.emplace_back(input, /*is_output=*/false);
    }
  }
  std::string name() const override { return "CheckpointBackward"; }
  void release_variables() override {
    inputs_.clear();
    forward_ = nullptr;
  }
  std::vector<at::Tensor> run() { return forward_(detached_inputs()); }

 protected:
  variable_list apply(variable_list&& gradients) override {
    TORCH_CHECK(forward_,
                "activation checkpointing: backward ran twice through a recomputed module, which does not support "
                "retain_graph; run forward again");
    const auto inputs = detached_inputs();
    variable_list outputs, of_outputs;
    {
      const ForwardStateScope scope(forward_state_);
      const at::AutoGradMode grad(true);
      const auto results = forward_(inputs);
      for (std::size_t i = 0; i < results.size(); ++i) {
        // An output that the loss did not use has an undefined gradient, and would make `backward` fail.
        if (!results[i].requires_grad() || !gradients[i].defined()) continue;
        outputs.push_back(results[i]);
        of_outputs.push_back(gradients[i]);
      }
    }
    // Reentrant: this pass accumulates parameter gradients directly. Outside the scope above, because the outer pass
    // also runs without the forward's precision.
    if (!outputs.empty()) torch::autograd::backward(outputs, of_outputs);
    variable_list of_inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      of_inputs.push_back(requires_grad_[i] ? inputs[i].grad() : at::Tensor());
    of_inputs.resize(num_outputs());
    return of_inputs;
  }

 private:
  std::vector<at::Tensor> detached_inputs() {
    std::vector<at::Tensor> inputs;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      // Detached, so that the inner pass stops at the inputs instead of running into the outer graph.
      auto input = inputs_[i].unpack();
      inputs.push_back(input.defined() ? input.detach().requires_grad_(requires_grad_[i]) : input);
    }
    return inputs;
  }

  Forward forward_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  ForwardState forward_state_;
};

}  // namespace

std::vector<at::Tensor> checkpoint(Forward forward, std::vector<at::Tensor> inputs) {
  if (!c10::GradMode::is_enabled()) return forward(inputs);
  auto edges = torch::autograd::collect_next_edges(inputs);
  edges.resize(inputs.size() + 1);
  // If no input requires a gradient, an edge to a tensor that does makes the engine run this node: the module's
  // parameters may still require one.
  if (!torch::autograd::any_variable_requires_grad(inputs))
    edges.back() = torch::autograd::impl::gradient_edge(at::zeros({}).requires_grad_());
  const auto node = make_node<Recompute>(std::move(edges), std::move(forward), inputs);
  std::vector<at::Tensor> outputs;
  {
    const c10::NoGradGuard no_grad;
    outputs = node->run();
  }
  for (auto& output : outputs) {
    if (!output.defined() || !output.is_floating_point()) continue;
    output = output.detach();  // forward may return one of its inputs, whose history must not be replaced
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace accel::detail
