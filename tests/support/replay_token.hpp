#pragma once

#include <rapidcheck.h>

#include <string>

/// The text that names one case of a property, for example `DataLaws.EveryLawHoldsInEveryMode:AAEC...`.
///
/// After the colon follows RapidCheck's record of the case (random state, size, path of shrinks), in base64 for URLs.
namespace accel::testing {

struct ReplayToken {
  std::string property;  ///< "Suite.Test", or "Suite.Test#2" for the second property of a test
  rc::detail::Reproduce reproduce;
};

std::string to_string(const ReplayToken& token);

/// Throws std::invalid_argument if the text is not a token.
ReplayToken parse_replay_token(const std::string& text);

}  // namespace accel::testing
