// What `prepare` checks and copies for models whose layers are divided over the ranks of a mesh.
#include <ATen/ops/empty.h>
#include <algorithm>
#include <c10/core/GradMode.h>
#include <map>

#include "reference/accelerator/preparation.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/parallel/same_model.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// The groups of a model's layers must be those of the mesh, over which gradients are averaged and norms are summed.
std::vector<std::string> problems_of_groups(const ParameterLayouts& layouts, const DeviceMesh& mesh) {
  std::map<std::pair<std::string_view, int>, std::vector<std::string>> names_of;  // by axis and number of ranks
  for (const auto& [name, divided] : layouts.of_layers()) {
    const auto axis = name_of(divided.layout.divisions.front().axis);
    const auto num_ranks = divided.groups.front().size();
    if (num_ranks != mesh[axis].size()) names_of[{axis, num_ranks}].push_back(name);
  }
  std::vector<std::string> problems;
  for (const auto& [group, names] : names_of) {
    const auto& [axis, num_ranks] = group;
    const auto others = names.size() == 1 ? " is" : fmt::format(" and {} other parameters are", names.size() - 1);
    problems.push_back(
        fmt::format("'{}'{} divided over {} ranks, and parallelism_config has {}_size {}; create the model with "
                    "accelerator.mesh()",
                    names.front(), others, num_ranks, axis, mesh[axis].size()));
  }
  return problems;
}

// The parts of a dimension that does not divide have other sizes on the last ranks.
NamedTensors with_complete_sizes(NamedTensors parameters, const ParameterLayouts& layouts) {
  for (auto& [name, parameter] : parameters) {
    const auto* divided = layouts.of_layer(name);
    if (divided == nullptr || !divided->is_divided_over(kTensorAxis)) continue;
    parameter = at::empty(divided->layout.sizes, parameter.options().device(at::kMeta))
                    .requires_grad_(parameter.requires_grad());
  }
  return parameters;
}

std::string undivided(MeshAxis axis, int size) {
  return fmt::format(
      "parallelism_config has {}_size {}, and no layer of the model is divided over these ranks, so all of them "
      "compute the same; create the model with accelerator.mesh()",
      name_of(axis), size);
}

}  // namespace

void Preparation::add_problems_of_stages(const ModelStages* stages, bool is_trained,
                                         std::vector<std::string>& problems) const {
  const auto pp_size = mesh().config().pp_size;
  if (stages == nullptr) {
    note_unless(!is_trained || pp_size == 1, problems,
                "parallelism_config has pp_size {}, and the model has no stages, so all of these ranks would compute "
                "the same; create it with pipeline_model(layers, accelerator.mesh())",
                pp_size);
    return;
  }
  note_unless(stages->group.size() == mesh()["pp"].size(), problems,
              "the model has stages on {} ranks, and parallelism_config has pp_size {}; create it with "
              "accelerator.mesh()",
              stages->group.size(), pp_size);
  const auto& ddp = settings().ddp_kwargs;
  note_unless(!ddp.find_unused_parameters && !ddp.static_graph, problems,
              "ddp_kwargs: find_unused_parameters and static_graph do not support the stages of a pipeline; omit them");
  note_unless(mixed_precision() != "fp8", problems,
              "mixed_precision fp8 does not support the stages of a pipeline; use bf16");
}

// All problems are one error, before the first collective. FSDP copies a model that is not divided to all
// tensor-parallel ranks, as in Accelerate, whose prepare_model rejects it otherwise. Source: accelerate/accelerator.py,
// _prepare_tp and prepare_model.
void Preparation::check_layouts(const ParameterLayouts& layouts, bool is_trained) const {
  const auto& sizes = mesh().config();
  const auto* stages = layouts.stages();
  // The layers of a pipeline that ranks divide may be on other stages.
  const auto is_divided = [&](MeshAxis axis) {
    return stages == nullptr ? layouts.has_layers_over(axis)
                             : stages->divided_axes.contains(std::string(name_of(axis)));
  };
  const bool lacks_tp = is_trained && sizes.tp_size > 1 && !is_divided(kTensorAxis);
  const bool lacks_ep = is_trained && sizes.ep_size > 1 && !is_divided(kExpertAxis);
  auto problems = problems_of_groups(layouts, mesh());
  note_unless(!lacks_ep, problems, "{}", undivided(kExpertAxis, sizes.ep_size));
  add_problems_of_stages(stages, is_trained, problems);
  if (shards()) {
    const auto& type = plugin().sharding->state_dict_type;
    note_unless((!layouts.has_divided_layers() && stages == nullptr) || type == "FULL_STATE_DICT", problems,
                "state_dict_type {} does not support layers that are divided over ranks, and pipelines; use "
                "FULL_STATE_DICT",
                type);
    if (lacks_tp && is_main_process()) warn_once(*context_, "prepare: " + undivided(kTensorAxis, sizes.tp_size));
  } else {
    note_unless(!lacks_tp, problems, "{}", undivided(kTensorAxis, sizes.tp_size));
    note_unless(
        !is_trained || sizes.dp_shard_size == 1, problems,
        "parallelism_config has dp_shard_size {}, and the model is not sharded; set fsdp_plugin or a deepspeed_plugin "
        "that shards, or use dp_replicate_size",
        sizes.dp_shard_size);
  }
  note_unless(!layouts.has_divided_layers() || mixed_precision() != "fp8", problems,
              "mixed_precision fp8 does not support layers that are divided over ranks; use bf16");
  note_unless(!layouts.has_layers_over(kExpertAxis) || !settings().master_weights, problems,
              "master_weights does not support experts that are divided over ranks; use mixed_precision bf16");
  check_config(problems.empty(), "prepare: {}", listed(problems, "; "));
}

// Tensor-parallel ranks may have drawn different numbers. DDP then copies each rank's values to its replicas.
void Preparation::copy_complete_tensors_of_first_peer(const ModelTensors& tensors,
                                                      const ParameterLayouts& layouts) const {
  const auto& peers = mesh()["tp"];
  if (peers.size() == 1) return;
  check_same_model(peers, with_complete_sizes(tensors.parameters, layouts));
  const c10::NoGradGuard no_grad;
  const auto copy_of_first = [&](const at::Tensor& tensor) {
    auto values = tensor.detach().contiguous();
    peers.broadcast(values).wait();
    tensor.detach().copy_(values);
  };
  for (const auto& [name, parameter] : tensors.parameters) {
    const auto* divided = layouts.of_layer(name);
    if (divided == nullptr || !divided->is_divided_over(kTensorAxis)) copy_of_first(parameter);
  }
  for (const auto& buffer : tensors.buffers.tensors) copy_of_first(buffer);
}

// An optimizer that is not elementwise, such as Muon or Adafactor, would treat each part as a complete parameter.
void Preparation::check_steps_parts(const torch::optim::Optimizer& optimizer, const ParameterLayouts& layouts) {
  if (!layouts.has_divided_layers()) return;
  const auto parameters = optim::parameters_of(optimizer);
  const bool is_divided = std::ranges::any_of(parameters, [&](const auto& own) {
    const auto* divided = layouts.find(own);
    return divided != nullptr && divided->layout.layer_division() != nullptr;
  });
  const auto problem = optim::sharding_problem(optimizer);
  check_state(!is_divided || problem.empty(),
              "prepare: layers that are divided over ranks: {}; use another optimizer, or tp_size and ep_size 1",
              problem);
}

}  // namespace accel
