#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "reference/core/random.hpp"
#include "reference/modules/call.hpp"
#include "reference/precision/float8_layers.hpp"

namespace accel::detail {
namespace {

using torch::autograd::variable_list;
using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// What a forward depends on beside its inputs: precision, and where generators stand.
class Circumstances {
 public:
  Circumstances() : float8_layers_(Float8Scope::current()), generator_(default_generator().get_state()) {
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
  // Of the device that this thread computes on; undefined without one.
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

class CircumstancesScope {
 public:
  explicit CircumstancesScope(const Circumstances& circumstances) : float8_(circumstances.float8_layers()) {
    at::autocast::increment_nesting();
    circumstances.apply();
  }
  ~CircumstancesScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    before_.apply();
  }
  CircumstancesScope(const CircumstancesScope&) = delete;
  CircumstancesScope& operator=(const CircumstancesScope&) = delete;

 private:
  Circumstances before_;
  Float8Scope float8_;
};

// Source: torch/utils/checkpoint.py, CheckpointFunction (use_reentrant).
class Recompute : public torch::autograd::Node {
 public:
  Recompute(torch::autograd::edge_list edges, Forward forward, const std::vector<at::Tensor>& inputs)
      : Node(std::move(edges)), forward_(std::move(forward)) {
    for (const auto& input : inputs) {
      requires_grad_.push_back(input.defined() && input.requires_grad());
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
    TORCH_CHECK(forward_, "a recomputed module's backward ran twice; retain_graph has no effect on it");
    const auto inputs = detached_inputs();
    variable_list outputs, of_outputs;
    {
      const CircumstancesScope scope(circumstances_);
      const at::AutoGradMode grad(true);
      const auto results = forward_(inputs);
      for (std::size_t i = 0; i < results.size(); ++i) {
        if (!results[i].requires_grad() || !gradients[i].defined()) continue;
        outputs.push_back(results[i]);
        of_outputs.push_back(gradients[i]);
      }
    }
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
      auto input = inputs_[i].unpack();
      inputs.push_back(input.defined() ? input.detach().requires_grad_(requires_grad_[i]) : input);
    }
    return inputs;
  }

  Forward forward_;
  std::vector<torch::autograd::SavedVariable> inputs_;
  std::vector<bool> requires_grad_;
  Circumstances circumstances_;
};

}  // namespace

std::vector<at::Tensor> checkpoint(Forward forward, std::vector<at::Tensor> inputs) {
  if (!c10::GradMode::is_enabled()) return forward(inputs);
  // A module whose inputs need no gradient still has parameters that do.
  auto edges = torch::autograd::collect_next_edges(inputs);
  edges.resize(inputs.size() + 1);
  edges.back() = torch::autograd::impl::gradient_edge(at::zeros({}).requires_grad_());
  const auto node = std::shared_ptr<Recompute>(new Recompute(std::move(edges), std::move(forward), inputs),
                                               torch::autograd::deleteNode);
  std::vector<at::Tensor> outputs;
  {
    const c10::NoGradGuard no_grad;
    outputs = node->run();
  }
  for (auto& output : outputs) {
    if (!output.defined() || !output.is_floating_point()) continue;
    output = output.detach();  // an input may come back as it was
    torch::autograd::set_history(output, node);
  }
  return outputs;
}

}  // namespace accel::detail
