#pragma once

#include <string>
#include <vector>

namespace accel {

/// The names that a pattern stands for, in order: "train-{000..122}.tar" (numbers of that width), "{a,b}.tar", and
/// several such groups. A pattern without braces stands for itself. Throws ArgumentError if a group is not closed or is
/// neither a range nor a list.
std::vector<std::string> expand_braces(const std::string& pattern);

}  // namespace accel
