#pragma once

#include <string_view>

#include "reference/core/errors.hpp"

/// What the errors of c10d's backends mean. All have one class, so the text decides.
namespace accel {

enum class TransportFailure {
  kNone,      ///< the rank's own, such as wrong arguments
  kLate,      ///< another rank is late
  kLostRank,  ///< another rank has ended, or its connection has
  kMismatch,  ///< another rank has made another call
};
TransportFailure transport_failure_of(std::string_view message);

/// The error of a call that a backend reported by this message: what failed, the message, and advice, which c10d lacks.
CommError comm_error(std::string_view what, std::string_view message);

}  // namespace accel
