#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "backends/process/link.hpp"

/// Begins the requests of a rank's process. Thread rule: any thread.
namespace accel::process {

/// What the language of the rank's program adds to its collectives.
struct ProgramHooks {
  /// The program's current line.
  std::function<std::pair<std::string, std::uint32_t>()> line = nullptr;
};

/// Processor time of this process.
double processor_seconds();

/// Begins a request with the program's line and the process's time.
MessageWriter begin_request(Request request, const ProgramHooks& hooks);
/// The same for a line that the caller has found; 0: unknown.
MessageWriter begin_request_at(Request request, std::string_view file, std::uint32_t line);

}  // namespace accel::process
