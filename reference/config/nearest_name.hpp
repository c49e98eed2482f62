#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace accel {

/// Returns the Levenshtein distance: the number of characters to insert, remove or replace.
std::size_t edit_distance(const std::string& from, const std::string& to);

/// Returns the name that was probably meant: the one with the smallest edit distance, if that is at most a third of the
/// length, or half of it if characters were only omitted.
std::optional<std::string> nearest_name(const std::string& text, const std::vector<std::string>& names);

/// Returns "; did you mean 'num_processes'?", or "" if no name is similar.
std::string nearest_name_hint(const std::string& text, const std::vector<std::string>& names);

}  // namespace accel
