#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backends/process/message.hpp"
#include "reference/mesh/parameter_layout.hpp"

namespace accel::process {

/// A ParameterState (reference/comm/parameter_state.hpp) without LibTorch's types.
struct ReportedState {
  std::uint64_t hash = 0;
  std::int8_t dtype = 0;      ///< at::ScalarType
  std::int32_t gradient = 0;  ///< ParameterState::Gradient
  std::uint64_t gradient_hash = 0;

  bool operator==(const ReportedState&) const = default;
};

/// A parameter of a model after an optimizer's step.
struct ParameterReport {
  std::string name;
  std::vector<std::int64_t> sizes;
  ParameterLayout layout;  ///< as in Replicas
  ReportedState state;
};

/// What ranks have in common after an optimizer's step, for the simulator to compare.
struct UpdateReport {
  std::uint64_t generator = 0;              ///< hash of the default generator's state
  std::vector<ParameterReport> parameters;  ///< of replicated models
  std::optional<int> stage_rank = {};       ///< as in Replicas
  double processor_seconds = 0;             ///< of the process, after the report was made
};
MessageWriter& operator<<(MessageWriter& message, const UpdateReport& report);
UpdateReport read_update_report(MessageReader& message);

}  // namespace accel::process
