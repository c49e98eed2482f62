#include "backends/process/request.hpp"

#include <time.h>

namespace accel::process {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

MessageWriter begin_request_at(Request request, std::string_view file, std::uint32_t line) {
  MessageWriter message;
  message << RequestHead{
      .request = request, .processor_seconds = processor_seconds(), .line = line, .file = std::string(file)};
  return message;
}

MessageWriter begin_request(Request request, const ProgramHooks& hooks) {
  if (!hooks.line) return begin_request_at(request, {}, 0);
  const auto [file, line] = hooks.line();
  return begin_request_at(request, file, line);
}

}  // namespace accel::process
