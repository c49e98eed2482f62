#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accel {

/// The name that was probably meant: the one with the fewest letters to change, where that is at most a third of them,
/// or half if letters are only left out.
std::optional<std::string> nearest_name(const std::string& text, const std::vector<std::string>& names);

/// "; did you mean 'num_processes'?", or nothing.
std::string nearest_name_hint(const std::string& text, const std::vector<std::string>& names);

}  // namespace accel
