#include "reference/modules/model_stages.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "reference/state/objects.hpp"

namespace accel {

const ModelStages::Entry* ModelStages::find(const std::string& name) const {
  const auto entry = std::ranges::find(entries, name, &Entry::name);
  return entry == entries.end() ? nullptr : &*entry;
}

bool ModelStages::counts_here(const std::string& name) const {
  const auto* entry = find(name);
  return entry == nullptr || entry->ranks.front() == group.rank();
}

std::size_t ModelStages::place_of(const std::string& name) const {
  return static_cast<std::size_t>(std::ranges::find(entries, name, &Entry::name) - entries.begin());
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
    if (counts_here(name)) shapes.emplace(name, tensor.detach());
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
  if (!has_first_rank()) return {};
  const auto device = current_rank().device;
  const auto sizes = group
                         .all_gather(at::full({1}, static_cast<std::int64_t>(bytes.size()),
                                              at::TensorOptions(at::kLong).device(device)))
                         .cpu();
  if (group.rank() > 0) {
    auto sent = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::memcpy(sent.mutable_data_ptr(), bytes.data(), bytes.size());
    sent = sent.to(device);
    group.send(sent, 0).wait();
    return {};
  }
  std::vector<std::string> all{bytes};
  for (int rank = 1; rank < group.size(); ++rank) {
    auto received = at::empty({sizes[rank].item<std::int64_t>()}, at::TensorOptions(at::kByte).device(device));
    group.recv(received, rank).wait();
    all.emplace_back(bytes_of(received.cpu()));
  }
  return all;
}

}  // namespace accel
