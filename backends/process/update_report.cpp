#include "backends/process/update_report.hpp"

namespace accel::process {
namespace {

// Replicas are divided by layers only.
void put_layout(MessageWriter& message, const ParameterLayout& layout) {
  const auto* division = layout.layer_division();
  message.put(division != nullptr);
  if (division == nullptr) return;
  const auto& shard = std::get<Shard>(division->placement);
  message.put_list(layout.sizes).put(division->axis).put(division->index).put(division->num_parts);
  message.put(shard.dim).put_list(shard.sections);
}

ParameterLayout read_layout(MessageReader& message) {
  ParameterLayout layout;
  if (!message.get<bool>()) return layout;
  layout.sizes = message.list();
  auto& division = layout.divisions.emplace_back();
  division.axis = message.get<MeshAxis>();
  division.index = message.get<int>();
  division.num_parts = message.get<int>();
  Shard shard{.dim = message.get<std::int64_t>()};
  shard.sections = message.list();
  division.placement = std::move(shard);
  return layout;
}

}  // namespace

MessageWriter& operator<<(MessageWriter& message, const UpdateReport& report) {
  message.put(report.generator).put(report.stage_rank.value_or(-1));
  message.put(static_cast<std::uint64_t>(report.parameters.size()));
  for (const auto& parameter : report.parameters) {
    const auto& state = parameter.state;
    message.put(parameter.name).put_list(parameter.sizes);
    put_layout(message, parameter.layout);
    message.put(state.hash).put(state.dtype).put(state.gradient).put(state.gradient_hash);
  }
  return message.put(report.processor_seconds);
}

UpdateReport read_update_report(MessageReader& message) {
  UpdateReport report{.generator = message.get<std::uint64_t>(), .parameters = {}};
  if (const auto stage_rank = message.get<int>(); stage_rank >= 0) report.stage_rank = stage_rank;
  report.parameters.resize(message.get<std::uint64_t>());
  for (auto& parameter : report.parameters) {
    parameter.name = message.text();
    parameter.sizes = message.list();
    parameter.layout = read_layout(message);
    parameter.state.hash = message.get<std::uint64_t>();
    parameter.state.dtype = message.get<std::int8_t>();
    parameter.state.gradient = message.get<std::int32_t>();
    parameter.state.gradient_hash = message.get<std::uint64_t>();
  }
  report.processor_seconds = message.get<double>();
  return report;
}

}  // namespace accel::process
