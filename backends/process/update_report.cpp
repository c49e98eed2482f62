#include "backends/process/update_report.hpp"

namespace accel::process {

MessageWriter& operator<<(MessageWriter& message, const UpdateReport& report) {
  message.put(report.generator).put(static_cast<std::uint64_t>(report.parameters.size()));
  for (const auto& parameter : report.parameters) {
    const auto& state = parameter.state;
    message.put(parameter.name).put_list(parameter.sizes).put(parameter.part);
    message.put(state.hash).put(state.dtype).put(state.gradient).put(state.gradient_hash);
  }
  return message.put(report.processor_seconds);
}

UpdateReport read_update_report(MessageReader& message) {
  UpdateReport report{.generator = message.get<std::uint64_t>(), .parameters = {}};
  report.parameters.resize(message.get<std::uint64_t>());
  for (auto& parameter : report.parameters) {
    parameter.name = message.text();
    parameter.sizes = message.list();
    parameter.part = message.get<int>();
    parameter.state.hash = message.get<std::uint64_t>();
    parameter.state.dtype = message.get<at::ScalarType>();
    parameter.state.gradient = message.get<ParameterState::Gradient>();
    parameter.state.gradient_hash = message.get<std::uint64_t>();
  }
  report.processor_seconds = message.get<double>();
  return report;
}

}  // namespace accel::process
