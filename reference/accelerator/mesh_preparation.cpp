// What `prepare` checks and copies for models whose layers are divided over the ranks of a mesh.
#include <c10/core/GradMode.h>

#include <algorithm>
#include <set>

#include "reference/accelerator/preparation.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/parallel/same_model.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

// The groups of a model's layers must be those of the mesh, over which gradients are averaged and norms are summed.
void Preparation::check_cuts(const torch::nn::Module& module) const {
  const auto& sizes = mesh().config();
  std::set<std::string> axes;
  for (const auto& [name, cut] : parallel::parameter_cuts(module)) {
    axes.insert(cut.axis);
    check_argument(
        cut.group.size() == mesh()[cut.axis].size(),
        "prepare: '{}' is divided over {} ranks, and parallelism_config has {}_size {}; create the model with "
        "accelerator.mesh()",
        name, cut.group.size(), cut.axis, mesh()[cut.axis].size());
  }
  check_config(axes.empty() || mixed_precision() != "fp8",
               "prepare: mixed_precision fp8 does not support layers that are divided over ranks; use bf16");
  check_config(
      !axes.contains("ep") || !settings().master_weights,
      "prepare: master_weights does not support experts that are divided over ranks; use mixed_precision bf16");
  for (const auto& [axis, size] : {std::pair("tp", sizes.tp_size), std::pair("ep", sizes.ep_size)}) {
    if (size > 1 && !axes.contains(axis) && is_main_process())
      warn_once(*context_,
                fmt::format("prepare: parallelism_config has {}_size {}, and no layer of the model is divided "
                            "over these ranks, so all of them compute the same; create the model with "
                            "accelerator.mesh()",
                            axis, size));
  }
}

// Tensor-parallel ranks may have drawn different numbers. DDP then copies each rank's values to its replicas.
void Preparation::copy_complete_tensors_of_first_peer(const ModelTensors& tensors, const CutParameters& cuts) const {
  const auto& peers = mesh()["tp"];
  if (peers.size() == 1) return;
  check_same_model(peers, tensors.parameters);
  const c10::NoGradGuard no_grad;
  const auto copy_of_first = [&](const at::Tensor& tensor) {
    auto values = tensor.detach().contiguous();
    peers.broadcast(values).wait();
    tensor.detach().copy_(values);
  };
  for (const auto& [name, parameter] : tensors.parameters) {
    const auto* cut = cuts.find(name);
    if (cut == nullptr || cut->axis != "tp") copy_of_first(parameter);
  }
  for (const auto& buffer : tensors.buffers) copy_of_first(buffer);
}

// An optimizer that is not elementwise, such as Muon or Adafactor, would treat each part as a complete parameter.
void Preparation::check_steps_parts(const torch::optim::Optimizer& optimizer, const CutParameters& cuts) {
  if (cuts.empty()) return;
  const auto parameters = optim::parameters_of(optimizer);
  const bool is_cut =
      std::any_of(parameters.begin(), parameters.end(), [&](const auto& own) { return cuts.holds(own); });
  const auto problem = optim::sharding_problem(optimizer);
  check_state(!is_cut || problem.empty(),
              "prepare: layers that are divided over ranks: {}; use another optimizer, or tp_size and ep_size 1",
              problem);
}

}  // namespace accel
