#include "reference/comm/transport_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

namespace accel {
namespace {

const char* advice_for(TransportFailure failure) {
  switch (failure) {
    case TransportFailure::kNone: return "";
    case TransportFailure::kLate:
      return "; expected every rank to make this call in time; see the late rank's log, or raise "
             "init_process_group_kwargs.timeout";
    case TransportFailure::kLostRank:
      return "; a rank ended or lost its connection; see the first error in the ranks' logs";
    case TransportFailure::kMismatch:
      return "; expected the same call with equal sizes on every rank; ACCELERATE_DEBUG_MODE=1 reports the shapes of "
             "all ranks";
  }
  throw InternalError("unknown TransportFailure");
}

}  // namespace

TransportFailure transport_failure_of(std::string_view message) {
  const auto has_any = [&](std::initializer_list<std::string_view> parts) {
    return std::any_of(parts.begin(), parts.end(), [&](auto part) { return message.find(part) != message.npos; });
  };
  if (has_any({"Timed out", "timed out", "timeout"})) return TransportFailure::kLate;
  if (has_any({"by peer", "Broken pipe"})) return TransportFailure::kLostRank;
  if (has_any({"mismatch"})) return TransportFailure::kMismatch;
  return TransportFailure::kNone;
}

CommError comm_error(std::string_view what, std::string_view message) {
  return CommError(fmt::format("{}: {}{}", what, message, advice_for(transport_failure_of(message))));
}

}  // namespace accel
