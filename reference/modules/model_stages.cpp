#include "reference/modules/model_stages.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <map>

#include "reference/state/objects.hpp"

namespace accel {

const ModelStages::Entry* ModelStages::find(const std::string& name) const {
  const auto entry = std::ranges::find(entries, name, &Entry::name);
  return entry == entries.end() ? nullptr : &*entry;
}

// Replicas of a pipeline need not send the same. Collective.
bool ModelStages::has_first_rank() const {
  const auto& context = current_rank();
  auto first = at::full({1}, context.rank, at::TensorOptions(at::kLong).device(context.device));
  group.broadcast(first).wait();
  return first.item<std::int64_t>() == 0;
}

NamedTensors ModelStages::gather_on_first(const NamedTensors& own) const {
  if (!has_first_rank()) return {};
  const c10::NoGradGuard no_grad;
  const auto device = current_rank().device;
  const std::map<std::string, at::Tensor> by_name(own.begin(), own.end());
  std::map<std::string, at::Tensor> shapes;
  for (const auto& [name, tensor] : own) {
    if (find(name)->ranks.front() == group.rank()) shapes.emplace(name, tensor.detach());
  }
  std::map<std::string, at::Tensor> elsewhere;
  for (const auto& bytes : detail::all_gather_bytes(group, pack(shapes, TensorBytes::kShapeOnly)))
    elsewhere.merge(unpack<std::map<std::string, at::Tensor>>(bytes, TensorBytes::kShapeOnly));

  NamedTensors complete;
  std::map<std::string, at::Tensor> by_first_name;  // a tensor with several names stays one tensor
  for (const auto& entry : entries) {
    const auto owner = entry.ranks.front();
    const auto& name = entry.first_name;
    if (group.rank() != 0) {
      if (name != entry.name || owner != group.rank()) continue;
      auto sent = by_name.at(name).detach().to(device).contiguous();
      group.send(sent, 0).wait();
      continue;
    }
    auto& tensor = by_first_name[name];
    if (!tensor.defined() && owner == 0) {
      tensor = by_name.at(name).detach().cpu();
    } else if (!tensor.defined()) {
      const auto& shape = elsewhere.at(name);
      auto received = at::empty(shape.sizes(), shape.options().device(device));
      group.recv(received, owner).wait();
      tensor = received.cpu();
    }
    complete.emplace_back(entry.name, tensor);
  }
  return complete;
}

std::vector<std::string> ModelStages::gather_bytes_on_first(const std::string& bytes) const {
  return has_first_rank() ? detail::gather_bytes_on_first(group, bytes) : std::vector<std::string>();
}

}  // namespace accel
