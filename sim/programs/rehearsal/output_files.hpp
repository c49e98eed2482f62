#pragma once

#include <string>
#include <vector>

#include "reference/files/temporary_folder.hpp"

namespace accel::programs {

/// Returns why the file cannot be written and what to do, as in "/x is not a folder; create it first". Returns "" if it
/// can be written or `path` is empty.
std::string problem_of_output(const std::string& path);

/// Writes the file atomically: it exists in full or not at all. An existing path that is not a regular file (a pipe,
/// /dev/stdout) is written directly, because a rename would replace it. Throws Error.
void write_text(const std::string& path, const std::string& text);
void write_lines(const std::string& path, const std::vector<std::string>& lines);

/// Returns the current time in UTC, such as 2026-11-25T16:21:06Z, for a file that says when it was made.
std::string utc_timestamp();

/// Returns the lines of a file; none if it cannot be read.
std::vector<std::string> lines_in(const std::string& path);

}  // namespace accel::programs
