#pragma once

#include <any>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/core/device.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/training_state/training_state.hpp"
#include "reference/tree/tree.hpp"

namespace accel {

struct CapturedStepOptions {
  /// Calls that run the function itself, before it is captured. LibTorch's DDP needs 11 to settle its buckets.
  int warm_up_steps = 11;
};

namespace detail {

/// The part of CapturedStep that does not depend on the types of its function.
class StepGraph {
 public:
  StepGraph(RankContext& context, AcceleratorOptions options, TrainingState& training, int warm_up_steps)
      : context_(context), options_(std::move(options)), training_(training), warm_up_steps_(warm_up_steps) {}

  /// Whether the rank's device has graphs. Otherwise every call runs the function.
  [[nodiscard]] bool is_supported() const { return context_.capture_graph != nullptr; }
  /// Whether this call still belongs to the warm-up, which restarts if the memory that was captured has been replaced.
  /// Throws StateError with all reasons why the step cannot be captured.
  [[nodiscard]] bool warms_up();
  [[nodiscard]] bool is_captured() const { return graph_ != nullptr; }
  /// A copy of an input on the rank's device.
  [[nodiscard]] at::Tensor slot_of(const at::Tensor& input) const;
  /// Captures the function; nothing runs.
  void capture(const std::function<void()>& function);
  /// Copies `inputs` into `slots`, which the captured function reads, and queues the captured work. Throws
  /// ArgumentError for inputs of another number, shape or dtype.
  void replay(const std::vector<at::Tensor>& slots, const std::vector<at::Tensor>& inputs);

 private:
  struct Rate {
    at::Tensor tensor;
    double value = 0;
  };
  using Rates = std::vector<std::vector<Rate>>;  // by optimizer and group

  void check_can_be_captured() const;
  [[nodiscard]] std::vector<std::string> problems() const;
  [[nodiscard]] Rates make_rates() const;
  void read_rates_from_options();
  void update_rates();
  [[nodiscard]] std::vector<const void*> addresses() const;

  RankContext& context_;
  AcceleratorOptions options_;
  TrainingState& training_;
  int warm_up_steps_, num_calls_ = 0;
  std::unique_ptr<DeviceGraph> graph_;
  Rates rates_;
  std::vector<const void*> addresses_;  // of parameters and optimizer state, at the capture
};

}  // namespace detail

/// A training step that is captured once as a CUDA graph and then replayed, so that the host no longer starts each
/// kernel. It helps models whose kernels are shorter than their start.
///
///     auto step = accelerator.capture_step([&](const at::Tensor& image, const at::Tensor& label) {
///       auto loss = torch::nn::functional::cross_entropy(model(image), label);
///       accelerator.backward(loss);
///       optimizer.step();
///       optimizer.zero_grad();
///       return loss;
///     });
///     for (auto& [image, label] : batches) {
///       auto loss = step(image, label);
///       scheduler.step();
///     }
///
/// Inputs and results consist of tensors. The first calls run the function, and so does every call where devices lack
/// graphs, such as on CPUs. Later calls copy the inputs into tensors that the graph reads, and replay. They return the
/// same tensors each time; their values hold until the next call. The function runs once during the capture, so what it
/// does on the host, such as counting, happens then and not in replays: schedules step outside. Optimizers must be
/// fused ones of accel::optim (SGD, Adam, AdamW), which read learning rates (in float32), but no other options, again
/// in each replay.
///
/// If the memory of parameters or optimizer state has been replaced, as load_state and prepare do, the warm-up
/// restarts.
/// Do not use it inside join_uneven_inputs.
///
/// Throws StateError with all reasons if the step cannot be captured (fp16, gradient accumulation,
/// sharded models, guards, exact loss weights, a search for unused parameters, PowerSGD, other optimizers), and
/// ArgumentError for inputs of other shapes or dtypes than those of the capture: drop the last batch. Thread rule: the
/// rank's thread; the Accelerator must outlive it. Source: torch/cuda/graphs.py; PyTorch's notes on whole-network
/// capture.
template <typename Function>
class CapturedStep {
 public:
  CapturedStep(Function function, detail::StepGraph graph) : function_(std::move(function)), graph_(std::move(graph)) {}

  template <Tree... Inputs>
  std::invoke_result_t<Function&, const Inputs&...> operator()(const Inputs&... inputs) {
    using Output = std::invoke_result_t<Function&, const Inputs&...>;
    static_assert(detail::TensorTree<Output> && (detail::TensorTree<Inputs> && ...),
                  "capture_step: the function must accept and return tensors or trees of tensors: a number would keep "
                  "its value of the capture");
    if (!graph_.is_supported() || graph_.warms_up()) return function_(inputs...);
    using Slots = std::tuple<Inputs...>;
    const auto given = tensors_of(std::tie(inputs...));
    if (!graph_.is_captured()) {
      slots_ = map_tensors(Slots(inputs...), [&](const at::Tensor& tensor) { return graph_.slot_of(tensor); });
      graph_.capture([&] {
        output_ = std::apply([&](const auto&... slots) { return Output(function_(slots...)); }, slots_as<Slots>());
      });
    }
    graph_.replay(tensors_of(slots_as<Slots>()), given);
    return std::any_cast<const Output&>(output_);
  }

 private:
  template <typename Slots>
  const Slots& slots_as() const {
    const auto* slots = std::any_cast<Slots>(&slots_);
    check_argument(slots != nullptr, "capture_step: called with inputs of other types than those of the capture");
    return *slots;
  }

  Function function_;
  detail::StepGraph graph_;
  std::any slots_, output_;
};

}  // namespace accel
